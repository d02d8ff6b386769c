//! A grid from options.

use std::path::{Path, PathBuf};

use burn_oscar::Method;
use clap::{Args, ValueEnum, builder::PossibleValuesParser};
use models::cli::positive;

use crate::{
    error::{Error, Result},
    grid::{Grid, OneOrMany, Sweep},
    tasks::{Perplexity, Questions, Recall, Retrieval, Task},
};

/// The tasks by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TaskName {
    /// The next token of a text
    Perplexity,
    /// Given answers of a question set
    Questions,
    /// Numbers hidden in a text
    Retrieval,
    /// A passage that comes again
    Recall,
}

/// Tasks and methods as options.
#[derive(Debug, Args)]
pub struct GridArgs {
    /// What is done with every method, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "perplexity",
        value_name = "TASKS",
        help_heading = "Tasks"
    )]
    tasks: Vec<TaskName>,

    /// The text of perplexity, retrieval and recall, a UTF-8 file
    #[arg(long, value_name = "FILE", help_heading = "Tasks")]
    text: Option<PathBuf>,

    /// Perplexity: tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = positive,
          help_heading = "Tasks")]
    window: usize,

    /// Perplexity and recall: windows, spread evenly over the text
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = positive,
          help_heading = "Tasks")]
    windows: usize,

    /// Perplexity: take the windows from the beginning of the text, one after the other
    #[arg(long, help_heading = "Tasks")]
    consecutive: bool,

    /// Perplexity: the first position of the headline, past the sinks and most recent tokens
    #[arg(long, default_value_t = 512, value_name = "POSITION", value_parser = positive,
          help_heading = "Tasks")]
    past: usize,

    /// Questions: JSON lines with `question` and `answer`
    #[arg(long, value_name = "FILE", help_heading = "Tasks")]
    question_file: Option<PathBuf>,

    /// Questions: how many
    #[arg(long, default_value_t = 16, value_name = "COUNT", value_parser = positive,
          help_heading = "Tasks")]
    questions: usize,

    /// Questions: examples before each, from the beginning of the file
    #[arg(
        long,
        default_value_t = 12,
        value_name = "COUNT",
        help_heading = "Tasks"
    )]
    shots: usize,

    /// Retrieval: tokens of the texts, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2048",
        value_name = "TOKENS",
        help_heading = "Tasks"
    )]
    lengths: Vec<usize>,

    /// Retrieval: where the number lies, 0 (beginning) to 1 (end), separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,0.25,0.5,0.75,1",
        value_name = "DEPTHS",
        help_heading = "Tasks"
    )]
    depths: Vec<f64>,

    /// Retrieval: numbers in one text; several are spread evenly instead of --depths
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = positive,
          help_heading = "Tasks")]
    needles: usize,

    /// Retrieval: texts of each length and depth
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = positive,
          help_heading = "Tasks")]
    repeats: usize,

    /// Recall: tokens of the passage
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = positive,
          help_heading = "Tasks")]
    passage: usize,

    /// Recall: tokens before the passage comes again
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = positive,
          help_heading = "Tasks")]
    context: usize,

    /// The methods, separated by commas [default: all, but for calibrated ones without an artifact]
    #[arg(long, value_delimiter = ',', value_name = "METHODS", help_heading = "Methods",
          value_parser = PossibleValuesParser::new(Method::PRESETS.iter().copied()))]
    methods: Vec<String>,

    /// Artifact of a calibrated method, as in oscar=file.safetensors; may be repeated
    #[arg(long, value_name = "METHOD=FILE", value_parser = artifact, help_heading = "Methods")]
    calibration: Vec<(String, PathBuf)>,

    /// Sinks/recent tokens to try, separated by commas [default: the method's, 64/256]
    #[arg(long, value_delimiter = ',', value_name = "SINK/RECENT", value_parser = windows,
          help_heading = "Methods")]
    cache_windows: Vec<[usize; 2]>,

    /// Bits to try, separated by commas: 2, 4 or 8 [default: the method's]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BITS",
        help_heading = "Methods"
    )]
    bits: Vec<u8>,

    /// Groups to try, separated by commas, for methods that have groups [default: the method's]
    #[arg(long, value_delimiter = ',', value_name = "ELEMENTS", value_parser = positive,
          help_heading = "Methods")]
    group: Vec<usize>,
}

impl GridArgs {
    /// What `--grid` stands for, so that neither is silently ignored. Texts, questions and artifacts
    /// fill a grid that names none.
    pub const NAMES: &[&str] = &[
        "tasks",
        "window",
        "windows",
        "consecutive",
        "past",
        "questions",
        "shots",
        "lengths",
        "depths",
        "needles",
        "repeats",
        "passage",
        "context",
        "methods",
        "cache_windows",
        "bits",
        "group",
    ];

    /// The grid of the file, or the one that these options describe.
    ///
    /// # Errors
    /// What [`Grid::read`] gives; a usage error for an artifact of a method that is not measured.
    pub fn grid(&self, file: Option<&Path>) -> Result<Grid> {
        let mut grid = match file {
            Some(file) => Grid::read(file)?,
            None => Grid {
                tasks: self.tasks.iter().map(|name| self.task(*name)).collect(),
                methods: self.sweeps(),
            },
        };
        let measured = |name: &String| {
            let mut sweeps = grid.methods.iter();
            sweeps.any(|sweep| sweep.name.values().contains(name))
        };
        if let Some((method, _)) = self.calibration.iter().find(|(name, _)| !measured(name)) {
            return Err(Error::usage(format!(
                "there is an artifact for {method}, which is not measured: add it to --methods or to \
                 the grid"
            )));
        }
        grid.fill(
            self.text.as_deref(),
            self.question_file.as_deref(),
            &self.calibration,
        );
        Ok(grid)
    }

    /// A task; its file comes from [`Grid::fill`].
    fn task(&self, name: TaskName) -> Task {
        let file = PathBuf::new;
        match name {
            TaskName::Perplexity => Task::Perplexity(Perplexity {
                text: file(),
                window: self.window,
                windows: self.windows,
                only: Vec::new(),
                past: self.past,
                consecutive: self.consecutive,
            }),
            TaskName::Questions => Task::Questions(Questions {
                file: file(),
                shots: self.shots,
                questions: self.questions,
            }),
            TaskName::Retrieval => Task::Retrieval(Retrieval {
                text: file(),
                lengths: self.lengths.clone(),
                depths: self.depths.clone(),
                needles: self.needles,
                repeats: self.repeats,
            }),
            TaskName::Recall => Task::Recall(Recall {
                text: file(),
                passage: self.passage,
                context: self.context,
                windows: self.windows,
            }),
        }
    }

    /// One entry a method; the artifacts come from [`Grid::fill`].
    fn sweeps(&self) -> Vec<Sweep> {
        let can_run = |name: &&&str| {
            let mut artifacts = self.calibration.iter();
            !Method::needs_calibration(name) || artifacts.any(|(method, _)| method == **name)
        };
        let names: Vec<String> = match self.methods.is_empty() {
            false => self.methods.clone(),
            true => {
                let names = Method::PRESETS.iter().filter(can_run);
                names.map(|name| name.to_string()).collect()
            }
        };
        let sweep = |name| Sweep {
            windows: self.cache_windows.clone().into(),
            bits: self.bits.clone().into(),
            group: self.group.clone().into(),
            name: OneOrMany::One(name),
            ..Sweep::default()
        };
        names.into_iter().map(sweep).collect()
    }
}

/// Parses `METHOD=FILE`.
fn artifact(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (method, file) = text
        .split_once('=')
        .filter(|(_, file)| !file.is_empty())
        .ok_or("write METHOD=FILE, as in oscar=oscar.safetensors")?;
    if Method::needs_calibration(method) {
        Ok((method.to_string(), file.into()))
    } else {
        let all = Method::PRESETS.iter();
        let calibrated: Vec<&str> = all
            .copied()
            .filter(|name| Method::needs_calibration(name))
            .collect();
        Err(format!(
            "`{method}` is not a calibrated method; these are: {}",
            calibrated.join(", ")
        ))
    }
}

/// Parses `SINK/RECENT`.
fn windows(text: &str) -> std::result::Result<[usize; 2], String> {
    let parsed = text
        .split_once('/')
        .and_then(|(sink, recent)| Some([sink.parse().ok()?, recent.parse().ok()?]));
    parsed.ok_or_else(|| "write two numbers of tokens, as in 64/256".to_string())
}

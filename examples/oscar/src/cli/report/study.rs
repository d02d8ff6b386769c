//! Everything from a model and two texts: artifacts, then rows.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use burn_oscar::{
    Calibration,
    calibration::{Statistics, solve},
};
use indicatif::ProgressBar;
use models::cli::{Session, progress};
use sha2::{Digest, Sha256};

use crate::{
    calibrate::{Gather, MethodName, Shard, SolveArgs},
    cli::evaluate::{Evaluation, model_note},
    error::{Error, Result},
    grid::{Sweep, hex, variants},
    rows::Row,
    tasks::{Perplexity, Questions, Recall, Retrieval, Sample, Source, Task},
};

/// What is measured, and how large.
pub struct Study {
    pub text: PathBuf,
    pub calibration_text: PathBuf,
    pub questions: Option<PathBuf>,
    /// Tokens of a window, of the texts that hide numbers and of those before a repetition.
    pub window: usize,
    pub windows: usize,
    pub calibration_windows: usize,
    pub past: usize,
}

/// Tokens that go through the model at once.
const CHUNK: usize = 512;

/// `oscar` as its paper has it.
const PUBLISHED: &str = "oscar as published";
/// The artifact of the first window only. In tables its tokens tell it from the other.
const ONE_WINDOW: &str = "transform_coded one window";

/// Artifacts by title.
type Artifacts = BTreeMap<&'static str, PathBuf>;

impl Study {
    /// Makes what `folder` lacks and returns all rows. One bar shows the time left for all of it.
    pub fn run(&self, session: &Session, model: &Path, folder: &Path) -> Result<Vec<Row>> {
        fs::create_dir_all(folder).map_err(Error::file(folder))?;
        let perplexity = self.samples(session, &[self.perplexity()])?;
        let tasks = self.samples(session, &self.tasks())?;
        let tokens = |samples: &[Sample]| samples.iter().map(Sample::tokens).sum::<usize>();

        // Before there are artifacts, all methods count as if nothing was measured yet. The exact
        // cache is one more.
        let planned = [PUBLISHED, ONE_WINDOW, "oscar", "transform_coded"];
        let planned: Artifacts = planned.map(|title| (title, PathBuf::new())).into();
        let passes = |sweeps: Vec<Sweep>| {
            let settings = sweeps.iter().map(|sweep| sweep.settings().len());
            1 + settings.sum::<usize>()
        };
        let all = passes(all_methods(&planned)) * tokens(&perplexity);
        let few = passes(few_methods(&planned)) * tokens(&tasks);
        let calibration = self.calibration_windows * self.window;
        let bar = progress(session.quiet, calibration + all + few, "");
        let artifacts = self.calibrate(session, folder, &bar)?;

        let rows = folder.join("rows.jsonl");
        let measure = |samples: &[Sample], sweeps: Vec<Sweep>, later: usize| {
            let variants = variants(&sweeps)?;
            let evaluation = Evaluation {
                session,
                model: model_note(session, model),
                samples,
                variants: &variants,
                chunk: CHUNK,
            };
            evaluation.run(Some(&rows), &bar, later)
        };
        let mut measured = measure(&perplexity, all_methods(&artifacts), few)?;
        measured.extend(measure(&tasks, few_methods(&artifacts), 0)?);
        bar.finish_and_clear();
        Ok(measured)
    }

    fn perplexity(&self) -> Task {
        Task::Perplexity(Perplexity {
            text: self.text.clone(),
            window: self.window,
            windows: self.windows,
            only: Vec::new(),
            past: self.past,
            consecutive: false,
        })
    }

    fn tasks(&self) -> Vec<Task> {
        let mut tasks = vec![
            Task::Retrieval(Retrieval {
                text: self.text.clone(),
                // Room for the question.
                lengths: vec![self.window - self.window / 16],
                depths: vec![0.25, 0.75],
                needles: 1,
                repeats: 1,
            }),
            Task::Recall(Recall {
                text: self.text.clone(),
                passage: self.window / 8,
                context: self.window - self.window / 8,
                windows: 1,
            }),
        ];
        tasks.extend(self.questions.clone().map(|file| {
            Task::Questions(Questions {
                file,
                // An example of GSM8K has about 170 tokens; the question needs room.
                shots: (self.window / 200).max(1),
                questions: 8,
            })
        }));
        tasks
    }

    fn samples(&self, session: &Session, tasks: &[Task]) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        for task in tasks {
            samples.extend(task.samples(session.tokenizer())?);
        }
        Ok(samples)
    }

    /// The artifacts, made from one window and from all of them. Everything is kept under names
    /// that change with the text and its windows, so nothing stale is taken.
    fn calibrate(&self, session: &Session, folder: &Path, bar: &ProgressBar) -> Result<Artifacts> {
        let source = Source::read(&self.calibration_text)?;
        let (windows, window) = (self.calibration_windows, self.window);
        let name = format!("{} {windows} {window}", source.digest());
        let id = &hex(&Sha256::digest(name))[..8];
        let mut sum: Option<Statistics> = None;
        let mut artifacts = Artifacts::new();
        for number in 1..=windows {
            let path = folder.join(format!("statistics-{id}-{number}-of-{windows}.safetensors"));
            let part = match path.exists() {
                true => {
                    bar.set_length(bar.length().unwrap_or(0).saturating_sub(window as u64));
                    Statistics::load(&path)?
                }
                false => {
                    let gather = Gather {
                        texts: vec![self.calibration_text.clone()],
                        windows,
                        window,
                        shard: Shard {
                            number,
                            of: windows,
                        },
                        chunk: CHUNK,
                    };
                    let part = gather.run(session, bar)?;
                    part.save(&path)?;
                    part
                }
            };
            match &mut sum {
                None => sum = Some(part),
                Some(sum) => sum.merge(&part)?,
            }
            let Some(sum) = &sum else { continue };
            let wanted: &[(&'static str, MethodName, bool)] = match number {
                number if number == windows => &[
                    (PUBLISHED, MethodName::Oscar, true),
                    ("oscar", MethodName::Oscar, false),
                    ("transform_coded", MethodName::TransformCoded, false),
                ],
                1 => &[(ONE_WINDOW, MethodName::TransformCoded, false)],
                _ => &[],
            };
            for &(title, method, as_published) in wanted {
                let file = title.replace(' ', "-");
                let path = folder.join(format!("{file}-{id}.safetensors"));
                let fits = |path: &Path| {
                    let found = Calibration::load(path).ok()?;
                    Some(found.fingerprint() == session.loaded.fingerprint)
                };
                if fits(&path) != Some(true) {
                    let options = SolveArgs::preset(method, as_published)
                        .options(&session.loaded.config, sum.longest() as usize);
                    solve(sum, &options)?.calibration.save(&path)?;
                }
                artifacts.insert(title, path);
            }
        }
        Ok(artifacts)
    }
}

fn preset(name: &str) -> Sweep {
    Sweep {
        name: vec![name.to_string()].into(),
        ..Sweep::default()
    }
}

/// A method with one of the artifacts, whose title is its label where it is not a preset's.
fn calibrated(name: &str, title: &str, artifacts: &Artifacts) -> Option<Sweep> {
    let path = artifacts.get(title)?;
    Some(Sweep {
        calibration: vec![path.clone()].into(),
        label: (title == PUBLISHED).then(|| title.to_string()),
        ..preset(name)
    })
}

/// The presets, and what some of their settings do.
fn all_methods(artifacts: &Artifacts) -> Vec<Sweep> {
    let mut sweeps: Vec<Sweep> = [
        "round_to_nearest",
        "kivi",
        "hadamard",
        "hadamard_centred",
        "oscar_scaled",
    ]
    .map(preset)
    .into();
    for (name, title) in [
        ("oscar", PUBLISHED),
        ("oscar", "oscar"),
        ("transform_coded", "transform_coded"),
        ("transform_coded", ONE_WINDOW),
    ] {
        sweeps.extend(calibrated(name, title, artifacts));
    }
    for name in ["kivi", "oscar_scaled"] {
        sweeps.push(Sweep {
            windows: vec![[0, 128]].into(),
            ..preset(name)
        });
    }
    let windows = vec![[64, 128]];
    sweeps.extend(
        calibrated("transform_coded", "transform_coded", artifacts).map(|sweep| Sweep {
            windows: windows.into(),
            ..sweep
        }),
    );
    sweeps
}

/// The methods that tasks beside perplexity are worth their time for.
fn few_methods(artifacts: &Artifacts) -> Vec<Sweep> {
    let mut sweeps: Vec<Sweep> = ["hadamard_centred", "oscar_scaled"].map(preset).into();
    for name in ["oscar", "transform_coded"] {
        sweeps.extend(calibrated(name, name, artifacts));
    }
    sweeps
}

//! `oscar calibrate`: from texts to an artifact.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Instant,
};

use burn_oscar::calibration::{Solution, Statistics, solve};
use clap::Args;
use models::cli::{ModelArgs, Session, note, positive, print, print_json, progress};
use serde::Serialize;

use crate::{
    calibrate::{Gather, JobArgs, Shard, SolveArgs, diagnostics_table, validation_table},
    error::{Error, Result},
    tasks::Source,
};

/// Make the artifact of a calibrated method from texts
#[derive(Debug, Args)]
#[command(
    long_about = "Make the artifact of a calibrated method (oscar, transform_coded) from texts.\n\n\
        The texts go through the model with the exact cache, which sums up what attention sees: \
        second moments of queries, keys and values. No gradients and no optimiser are involved, and \
        a few thousand tokens do. The sums are solved for the method's transforms. They are kept \
        beside the artifact as FILE.statistics.safetensors, so other methods and other options need \
        no second reading: give them with --statistics.\n\n\
        --job does it as a Burn learner job: with checkpoints, so that a job that was stopped goes on, \
        an early stop when more text changes little, and a measurement on held-out text.\n\n\
        --shard reads one of several parts and writes its statistics only. `oscar merge` adds parts \
        up, to the bit as if one run had read everything.",
    after_long_help = "Examples:\n  \
        oscar calibrate --model model.gguf --text wiki.txt,code.txt --windows 4 --out tc.safetensors\n  \
        oscar calibrate --model model.gguf --text wiki.txt --windows 64 --job folder --tolerance 0.02 \\\n    \
        --valid other.txt --out tc.safetensors\n  \
        oscar calibrate --model model.gguf --statistics tc.statistics.safetensors --method oscar --out oscar.safetensors\n  \
        oscar calibrate --model model.gguf --statistics s.safetensors --method oscar --as-published --out paper.safetensors\n  \
        oscar calibrate --model model.gguf --text wiki.txt --windows 16 --shard 1/2 --out first.safetensors\n  \
        oscar calibrate --model model.gguf --statistics s.safetensors --serve-length 32768 --out long.safetensors"
)]
pub struct CalibrateArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// The texts, UTF-8 files, separated by commas
    ///
    /// A mix of what will be served is best.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "FILES",
        help_heading = "Texts",
        required_unless_present = "statistics"
    )]
    text: Vec<PathBuf>,

    /// Windows of each text, spread evenly over it
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = positive,
          help_heading = "Texts")]
    windows: usize,

    /// Tokens of a window
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = positive,
          help_heading = "Texts")]
    window: usize,

    /// Read one part of the windows, as in 1/4, and write statistics only
    #[arg(long, value_name = "NUMBER/COUNT", help_heading = "Texts")]
    shard: Option<Shard>,

    /// Statistics instead of texts; several files, separated by commas, are added up
    #[arg(long, value_delimiter = ',', value_name = "FILES", help_heading = "Texts",
          conflicts_with_all = ["text", "windows", "window", "shard"])]
    statistics: Vec<PathBuf>,

    /// Tokens that go through the model at once; fewer need less memory
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = positive,
          help_heading = "Texts")]
    chunk: usize,

    #[command(flatten)]
    job: JobArgs,

    #[command(flatten)]
    solver: SolveArgs,

    /// The artifact; with --shard the statistics
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: PathBuf,

    /// Print one JSON object instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    artifact: Option<&'a Path>,
    statistics: Option<&'a Path>,
    method: Option<&'a str>,
    tokens: u64,
    gathered_length: u64,
    served_length: Option<u64>,
    warnings: &'a [String],
    seconds: f64,
}

/// Adds up statistics files.
///
/// # Errors
/// Files that are damaged or not of one kind; the message names the file.
pub fn merged(paths: &[PathBuf]) -> Result<Statistics> {
    let mut sum: Option<Statistics> = None;
    for path in paths {
        let next = Statistics::load(path)?;
        match &mut sum {
            None => sum = Some(next),
            Some(sum) => sum
                .merge(&next)
                .map_err(|error| Error::usage(format!("{}: {error}", path.display())))?,
        }
    }
    sum.ok_or_else(|| Error::usage("there are no statistics: give at least one file"))
}

/// `tc.safetensors` to `tc.statistics.safetensors`.
pub fn beside(artifact: &Path) -> PathBuf {
    let mut name = artifact
        .file_stem()
        .map_or_else(OsString::new, OsString::from);
    name.push(".statistics.safetensors");
    artifact.with_file_name(name)
}

impl CalibrateArgs {
    /// Reads, solves, writes.
    pub fn run(self) -> Result<()> {
        let start = Instant::now();
        let session = Session::open(&self.model)?;
        if self.job.job.is_some() {
            return self.run_job(&session, start);
        }
        let (statistics, kept) = self.gather(&session)?;
        if self.shard.is_some() {
            return self.say(&Outcome {
                artifact: None,
                statistics: kept.as_deref(),
                method: None,
                tokens: statistics.tokens(),
                gathered_length: statistics.longest(),
                served_length: None,
                warnings: &[],
                seconds: start.elapsed().as_secs_f64(),
            });
        }
        check_model(&statistics, &session)?;
        let config = &session.loaded.config;
        let options = self.solver.options(config, statistics.longest() as usize);
        let solution = solve(&statistics, &options)?;
        self.finish(&session, &solution, kept.as_deref(), "", start)
    }

    /// The same as a learner job.
    fn run_job(&self, session: &Session, start: Instant) -> Result<()> {
        let options = self.solver.options(&session.loaded.config, self.window);
        let outcome = self.job.run(session, &self.texts(), options)?;
        let statistics = beside(&self.out);
        outcome.statistics.save(&statistics)?;
        let validation = validation_table(&outcome);
        let Some(solution) = &outcome.solution else {
            return Err(Error::usage(format!(
                "the job was stopped after {} windows: run it again to go on",
                outcome.windows
            )));
        };
        self.finish(session, solution, Some(&statistics), &validation, start)
    }

    /// Writes the artifact and says what is in it.
    fn finish(
        &self,
        session: &Session,
        solution: &Solution,
        statistics: Option<&Path>,
        validation: &str,
        start: Instant,
    ) -> Result<()> {
        let mut calibration = solution.calibration.clone();
        if !self.text.is_empty() {
            let texts = self.text.iter().map(|path| Source::read(path));
            let digests = texts.map(|text| Ok(text?.digest().to_string()));
            let digests = digests.collect::<Result<Vec<_>>>()?.join(" ");
            calibration = calibration.with_note("texts_sha256", digests)?;
        }
        calibration.save(&self.out)?;
        let found = &solution.diagnostics;
        for warning in &found.warnings {
            note(session.quiet, &format!("warning: {warning}"));
        }
        if !self.json {
            print(&format!("{}\n\n{validation}", diagnostics_table(found)))?;
        }
        self.say(&Outcome {
            artifact: Some(&self.out),
            statistics,
            method: Some(solution.calibration.method()),
            tokens: found.tokens,
            gathered_length: found.gathered_length,
            served_length: Some(found.served_length),
            warnings: &found.warnings,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    fn texts(&self) -> Gather {
        Gather {
            texts: self.text.clone(),
            windows: self.windows,
            window: self.window,
            shard: self.shard.unwrap_or(Shard::WHOLE),
            chunk: self.chunk,
        }
    }

    /// The statistics, and where they were written to.
    fn gather(&self, session: &Session) -> Result<(Statistics, Option<PathBuf>)> {
        if !self.statistics.is_empty() {
            return Ok((merged(&self.statistics)?, None));
        }
        let gather = self.texts();
        let bar = progress(session.quiet, gather.tokens(), "");
        let statistics = gather.run(session, &bar)?;
        bar.finish_and_clear();
        let path = match self.shard {
            Some(_) => self.out.clone(),
            None => beside(&self.out),
        };
        statistics.save(&path)?;
        Ok((statistics, Some(path)))
    }

    fn say(&self, outcome: &Outcome<'_>) -> Result<()> {
        if self.json {
            return Ok(print_json(outcome)?);
        }
        let served = outcome.served_length.map(|served| {
            let method = outcome.method.unwrap_or_default();
            format!(" for {method}, serves {served} positions")
        });
        let files = [outcome.artifact, outcome.statistics].into_iter().flatten();
        let files: String = files.map(|path| format!("{}\n", path.display())).collect();
        Ok(print(&format!(
            "{} tokens in windows of up to {}{}, {:.1} s\n{files}",
            outcome.tokens,
            outcome.gathered_length,
            served.unwrap_or_default(),
            outcome.seconds
        ))?)
    }
}

/// Refuses statistics of another model: its rotary embedding would be the wrong one.
fn check_model(statistics: &Statistics, session: &Session) -> Result<()> {
    let (theirs, ours) = (
        &statistics.config().fingerprint,
        &session.loaded.fingerprint,
    );
    if theirs == ours {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the statistics are of model `{theirs}`, --model is `{ours}`: give the model that they were \
         gathered with"
    )))
}

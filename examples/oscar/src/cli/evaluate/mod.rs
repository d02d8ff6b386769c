//! `oscar evaluate`: tasks and methods to JSON lines.

mod flags;
mod run;

use std::path::PathBuf;

use clap::Args;
use models::cli::{ModelArgs, Session, note, positive, print, progress};

pub use flags::GridArgs;
pub use run::{Evaluation, model_note};

use crate::{
    error::{Error, Result},
    report::{Summary, task_tables},
};

/// Measure what methods cost on tasks, as JSON lines
#[derive(Debug, Args)]
#[command(
    long_about = "Measure what methods cost on tasks, as JSON lines.\n\n\
        Everything goes through the packed cache as if token by token, and is compared with the \
        exact cache at every position that is scored. The tasks are\n\n  \
        perplexity  the next token of a text: over all positions, from --past on, and by position\n  \
        questions   the given answers of a question set, after --shots examples\n  \
        retrieval   numbers hidden in a text at several depths, and asked for at its end\n  \
        recall      a passage that comes again, word for word, after a long text\n\n\
        Each row is one sample and one method, with all settings, means in nats, standard errors, \
        bytes, machine, commit and seconds. With --out rows are added to a file as they come; what \
        is already in it is not measured again, so a run that was stopped goes on where it was. The \
        exact cache reads each sample once for all methods, and has a row of its own.\n\n\
        Options give one grid; --grid reads a finer one from a file.",
    after_long_help = "Examples:\n  \
        oscar evaluate --model model.gguf --text wiki.txt --methods kivi,hadamard_centred --out rows.jsonl\n  \
        oscar evaluate --model model.gguf --text wiki.txt --methods kivi --cache-windows 64/256,0/128 --bits 2,4\n  \
        oscar evaluate --model model.gguf --tasks perplexity,retrieval --text wiki.txt --window 8192 \\\n    \
        --windows 2 --lengths 2048,4096 --calibration transform_coded=tc.safetensors --out rows.jsonl\n  \
        oscar evaluate --model model.gguf --tasks questions --question-file gsm8k.jsonl --out rows.jsonl\n  \
        oscar evaluate --model model.gguf --grid examples/oscar/grids/windows.json --text wiki.txt --out rows.jsonl\n\n\
        A grid; every setting may be one value or a list, and every combination runs:\n  \
        {\"tasks\": [{\"kind\": \"perplexity\", \"text\": \"wiki.txt\", \"window\": 2048, \"windows\": 4, \"past\": 512},\n            \
        {\"kind\": \"questions\", \"file\": \"gsm8k.jsonl\", \"shots\": 12, \"questions\": 16},\n            \
        {\"kind\": \"retrieval\", \"text\": \"wiki.txt\", \"lengths\": [2048], \"depths\": [0, 0.5, 1], \"needles\": 1, \"repeats\": 2},\n            \
        {\"kind\": \"recall\", \"text\": \"wiki.txt\", \"passage\": 256, \"context\": 2048, \"windows\": 2}],\n   \
        \"methods\": [{\"name\": [\"kivi\", \"oscar_scaled\"], \"windows\": [[64, 256], [0, 128]], \"group\": [32, 64]},\n              \
        {\"name\": \"oscar_scaled\", \"key\": {\"token_norm\": false}, \"label\": \"rotation only\"},\n              \
        {\"name\": \"hadamard_centred\", \"value\": {\"exact\": true}},\n              \
        {\"name\": \"transform_coded\", \"calibration\": [\"512.safetensors\", \"8192.safetensors\"]}]}\n\n\
        Methods also have \"page_means\": false, which goes with artifacts of `calibrate --centring mean`. \
        `key` and `value` change one side: exact, transform (identity, hadamard, calibrated), bits, \
        segments ([[sixteenths of the channels, bits], ..]), group (0: the whole head), clip (1: none), \
        token_norm, page_mean."
)]
pub struct EvaluateArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// A grid of tasks and methods, a JSON file; its paths start from its folder
    ///
    /// Tasks that name no file read --text or --question-file, calibrated methods that name no
    /// artifact take those of --calibration.
    #[arg(long, value_name = "FILE", conflicts_with_all = GridArgs::NAMES)]
    grid: Option<PathBuf>,

    #[command(flatten)]
    flags: GridArgs,

    /// Tokens that go through the model at once; fewer need less memory
    ///
    /// The scores do not depend on it.
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = positive)]
    chunk: usize,

    /// Add the rows to this file, and leave out what it has [default: standard output]
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
}

impl EvaluateArgs {
    /// Measures what is missing, then prints tables of what was asked for.
    pub fn run(self) -> Result<()> {
        let grid = self.flags.grid(self.grid.as_deref())?;
        // Whatever is wrong with the methods is said before the model is loaded.
        let variants = grid.variants()?;
        let session = Session::open(&self.model)?;
        let mut samples = Vec::new();
        for task in &grid.tasks {
            samples.extend(task.samples(session.tokenizer())?);
        }
        let evaluation = Evaluation {
            session: &session,
            model: model_note(&session, &self.model.model),
            samples: &samples,
            variants: &variants,
            chunk: self.chunk,
        };
        let bar = progress(session.quiet, 0, "");
        let rows = evaluation.run(self.out.as_deref(), &bar, 0)?;
        bar.finish_and_clear();
        let tables = task_tables(&Summary::new(&rows));
        match self.out {
            // Standard output has the rows.
            None => note(session.quiet, &tables),
            Some(_) => print(&tables).map_err(Error::from)?,
        }
        Ok(())
    }
}

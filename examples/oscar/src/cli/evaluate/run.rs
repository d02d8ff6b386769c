//! The loop over samples and methods.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use burn_oscar::Method;
use indicatif::ProgressBar;
use models::{
    cli::{Session, note, print},
    evaluate::is_exact,
};

use crate::{
    error::Result,
    grid::{MethodNote, Setting, Variant},
    machine::{COMMIT, Machine},
    measure::Pass,
    rows::{FORMAT, ModelNote, Row, RowFile, sample_key},
    tasks::Sample,
};

/// Samples, methods and where they run.
pub struct Evaluation<'a> {
    pub session: &'a Session,
    pub model: ModelNote,
    pub samples: &'a [Sample],
    pub variants: &'a [Variant],
    /// Tokens that go through the model at once.
    pub chunk: usize,
}

/// What is to be done with one sample.
struct Work<'a> {
    sample: &'a Sample,
    /// Methods without a row, but for `exact`.
    variants: Vec<&'a Variant>,
    /// Whether `exact` has no row.
    exact: bool,
}

impl Work<'_> {
    fn tokens(&self) -> usize {
        let passes = match self.exact || !self.variants.is_empty() {
            true => 1 + self.variants.len(),
            false => 0,
        };
        passes * self.sample.tokens()
    }
}

/// The model's name and sizes for the rows.
pub fn model_note(session: &Session, path: &Path) -> ModelNote {
    let config = &session.loaded.config;
    // A hub id has an organisation; a file needs no folder.
    let name = match path.exists() {
        true => path.file_name().unwrap_or(path.as_os_str()),
        false => path.as_os_str(),
    };
    ModelNote {
        name: name.to_string_lossy().into_owned(),
        fingerprint: session.loaded.fingerprint.clone(),
        layers: config.num_layers,
        kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
    }
}

impl Evaluation<'_> {
    /// Measures what `out` does not have yet, and returns the rows of everything asked for. Rows
    /// are written as they come; without `out`, to standard output. The bar is set to what is left,
    /// and `later` tokens of whatever follows.
    ///
    /// # Errors
    /// What a pass gives, and a file that cannot be written.
    pub fn run(&self, out: Option<&Path>, bar: &ProgressBar, later: usize) -> Result<Vec<Row>> {
        let mut file = out.map(RowFile::open).transpose()?;
        let exact = Setting {
            name: "exact".to_string(),
            ..Setting::default()
        };
        let exact = exact.variant()?;
        let mut rows = Vec::new();
        let mut work = Vec::new();
        for sample in self.samples {
            let mut todo = Work {
                sample,
                variants: Vec::new(),
                exact: false,
            };
            let others = self.variants.iter().filter(|v| !is_exact(&v.method));
            for variant in std::iter::once(&exact).chain(others) {
                let key = sample_key(&self.model, sample, &variant.note);
                match file.as_ref().and_then(|file| file.get(&key)) {
                    Some(row) => rows.push(row.clone()),
                    None if is_exact(&variant.method) => todo.exact = true,
                    None => todo.variants.push(variant),
                }
            }
            work.push(todo);
        }
        self.say_what_is_there(file.as_ref(), &rows);
        for todo in &work {
            for variant in todo.variants.iter().chain(std::iter::once(&&exact)) {
                let longest = todo.sample.longest();
                self.session.check_memory(&variant.method, longest)?;
            }
        }

        let total: usize = work.iter().map(Work::tokens).sum();
        bar.set_length(bar.position() + (total + later) as u64);
        let machine = Machine::of(&self.session.device);
        for (number, todo) in work.iter().enumerate() {
            if todo.tokens() == 0 {
                continue;
            }
            let mut write = |row: Row| -> Result<()> {
                match &mut file {
                    Some(file) => file.push(row.clone())?,
                    None => {
                        let line =
                            serde_json::to_string(&row).map_err(models::cli::CliError::Json)?;
                        print(&format!("{line}\n"))?;
                    }
                }
                rows.push(row);
                Ok(())
            };
            let reference = self.pass(&exact.method, todo.sample, number, bar)?;
            if todo.exact {
                write(self.row(todo.sample, &exact.note, &reference, None, &machine)?)?;
            }
            for variant in &todo.variants {
                let pass = self.pass(&variant.method, todo.sample, number, bar)?;
                let note = &variant.note;
                write(self.row(todo.sample, note, &reference, Some(&pass), &machine)?)?;
            }
        }
        Ok(rows)
    }

    fn say_what_is_there(&self, file: Option<&RowFile>, rows: &[Row]) {
        let quiet = self.session.quiet;
        if file.is_some_and(|file| file.repaired) {
            note(quiet, "the last row was cut off and is measured again");
        }
        if rows.is_empty() {
            return;
        }
        let others = rows.iter().filter(|row| row.commit != COMMIT).count();
        let of_others = match others {
            0 => String::new(),
            others => format!(", {others} of them by another build of this program"),
        };
        let text = format!("{} rows are there already{of_others}", rows.len());
        note(quiet, &text);
    }

    fn pass(
        &self,
        method: &Method,
        sample: &Sample,
        number: usize,
        bar: &ProgressBar,
    ) -> Result<Pass> {
        let kind = sample.task.kind;
        let of = self.samples.len();
        bar.set_message(format!("{kind} {} of {of}, {}", number + 1, method.name()));
        Pass::run(self.session, method, sample, self.chunk, &mut |tokens| {
            bar.inc(tokens as u64)
        })
    }

    /// A row; of the exact cache itself without `pass`.
    fn row(
        &self,
        sample: &Sample,
        method: &MethodNote,
        exact: &Pass,
        pass: Option<&Pass>,
        machine: &Machine,
    ) -> Result<Row> {
        let own = pass.unwrap_or(exact);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Row {
            format: FORMAT,
            model: self.model.clone(),
            task: sample.task.clone(),
            item: sample.item.clone(),
            method: method.clone(),
            scores: Pass::score(self.session, sample, exact, pass)?,
            bytes: own.bytes(exact),
            machine: machine.clone(),
            commit: COMMIT.to_string(),
            unix_time: now.map_or(0, |elapsed| elapsed.as_secs()),
            seconds: own.seconds,
        })
    }
}

//! What a bench has found: printed, and written to a folder where everything was measured.

use crate::{Depth, Failure, Machine, Plot, Sample, Table};
use std::fs;
use std::path::{Path, PathBuf};

/// Prints at once; a full run keeps the same for `benches/results/DATE-MACHINE/PROGRAM/`.
#[derive(Debug)]
pub struct Results {
    folder: Option<PathBuf>,
    machine: Machine,
    summary: String,
    raw: Vec<String>,
}

impl Results {
    /// Those of `program`; says on which machine.
    #[must_use]
    pub fn new(program: &str, depth: &Depth) -> Self {
        let machine = Machine::here();
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        let folder = depth
            .is_full()
            .then(|| place.join(machine.slug()).join(program));
        let mut results = Self {
            folder,
            summary: format!("# {program}\n"),
            raw: Vec::new(),
            machine,
        };
        results.block(&results.machine.to_string());
        results
    }

    /// The machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// A line of prose.
    pub fn say(&mut self, line: &str) {
        println!("{line}");
        self.summary += &format!("\n{line}\n");
    }

    /// A table, and what it shows.
    pub fn table(&mut self, title: &str, table: &Table) {
        self.say(title);
        self.block(&table.to_string());
    }

    fn block(&mut self, text: &str) {
        println!("{text}\n");
        self.summary += &format!("\n```\n{text}\n```\n");
    }

    /// Keeps the raw data of a sample.
    ///
    /// # Errors
    ///
    /// Its times are none.
    pub fn keep(&mut self, sample: &Sample) -> Result<(), Failure> {
        if self.folder.is_some() {
            self.raw.extend(sample.raw()?);
        }
        Ok(())
    }

    /// Draws `plot` to a file of that name.
    ///
    /// # Errors
    ///
    /// It cannot be drawn or written.
    pub fn plot(&mut self, name: &str, plot: &Plot) -> Result<(), Failure> {
        if let Some(folder) = &self.folder {
            fs::create_dir_all(folder)?;
            fs::write(folder.join(format!("{name}.svg")), plot.svg()?)?;
            self.summary += &format!("\n![{}]({name}.svg)\n", plot.title);
        }
        Ok(())
    }

    /// Writes the folder of a full run.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn finish(self) -> Result<(), Failure> {
        if let Some(folder) = self.folder {
            fs::create_dir_all(&folder)?;
            let about = serde_json::to_string_pretty(&self.machine)?;
            fs::write(folder.join("about.json"), about + "\n")?;
            fs::write(folder.join("raw.jsonl"), self.raw.join("\n") + "\n")?;
            fs::write(folder.join("summary.md"), self.summary)?;
            println!("written to {}", folder.display());
        }
        Ok(())
    }
}

//! A printed table.

use comfy_table::{CellAlignment, presets};
use std::fmt;

/// Rows of words: the first columns are names, the others numbers.
#[derive(Debug)]
pub struct Table {
    printed: comfy_table::Table,
    names: usize,
}

impl Table {
    /// An empty one, whose first `names` columns are not numbers.
    #[must_use]
    pub fn new<'a>(names: usize, header: impl IntoIterator<Item = &'a str>) -> Self {
        let mut printed = comfy_table::Table::new();
        printed.load_style(presets::NOTHING);
        printed.set_header(header.into_iter().collect::<Vec<_>>());
        Self { printed, names }
    }

    /// Adds a row.
    pub fn row<I>(&mut self, cells: I)
    where
        I: IntoIterator,
        I::Item: ToString,
    {
        self.printed
            .add_row(cells.into_iter().map(|cell| cell.to_string()));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = self.printed.clone();
        for column in printed.column_iter_mut().skip(self.names) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let lines: Vec<_> = printed
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

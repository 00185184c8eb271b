//! Results: tables for people, JSON for machines, both on standard output.

use std::io::{self, Write as _};

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// The form of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// Columns and sentences.
    #[default]
    Table,
    /// One JSON value.
    Json,
}

impl Output {
    /// Prints a value in the form that was asked for.
    ///
    /// # Errors
    /// When standard output takes no more.
    pub fn print(self, value: &impl Serialize, table: impl FnOnce() -> String) -> io::Result<()> {
        let text = match self {
            Self::Table => table(),
            Self::Json => serde_json::to_string_pretty(value)?,
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{}", text.trim_end())?;
        out.flush()
    }
}

/// A table with a heading and right-aligned columns where numbers stand.
#[must_use]
pub fn table<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heading);
    let mut numeric = [true; N];
    for row in rows {
        for (is_numeric, cell) in numeric.iter_mut().zip(&row) {
            *is_numeric &= cell == NONE || cell.bytes().all(|byte| byte.is_ascii_digit());
        }
        table.add_row(row);
    }
    for (index, is_numeric) in numeric.into_iter().enumerate() {
        if let Some(column) = table.column_mut(index).filter(|_| is_numeric) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}

/// What stands for an absent value.
pub const NONE: &str = "-";

/// A value, or the sign that there is none.
#[must_use]
pub fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_and_words_left() {
        let rows = [
            ["0".to_owned(), "open".to_owned()],
            ["10".to_owned(), or_none(None::<u8>)],
        ];
        let text = table(["BUCKET", "STATE"], rows);
        assert_eq!(text, " BUCKET  STATE\n      0  open\n     10  -");
    }
}

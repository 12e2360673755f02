//! Tables and the points selected from them.

use super::PlotError;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A table of text with named columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// How rows with the same coordinates are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Not at all: they are an error.
    Refuse,
    /// By the largest value.
    Max,
    /// By the smallest value.
    Min,
    /// By the mean.
    Mean,
}

impl Table {
    /// Reads a CSV file without quotes.
    ///
    /// # Errors
    /// If the file cannot be read, or a line has a different number of fields than the first.
    pub fn read(file: &Path) -> Result<Self, PlotError> {
        let text = fs::read_to_string(file)
            .map_err(|cause| PlotError::Read { file: file.to_owned(), cause })?;
        let fields = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut lines = text.lines();
        let columns = lines.next().map(fields).unwrap_or_default();
        let mut rows = Vec::new();
        for (index, line) in lines.enumerate() {
            let row = fields(line);
            let wrong = |reason| PlotError::Row { file: file.to_owned(), line: index + 2, reason };
            if line.contains('"') {
                return Err(wrong("quoted fields are not supported".into()));
            }
            if row.len() != columns.len() {
                let (found, expected) = (row.len(), columns.len());
                return Err(wrong(format!(
                    "it has {found} fields, but the first line has {expected}"
                )));
            }
            rows.push(row);
        }
        Ok(Self { columns, rows })
    }

    /// Keeps the rows with this value in a column. Numbers are compared as numbers.
    ///
    /// # Errors
    /// If there is no such column.
    pub fn only(mut self, column: &str, value: &str) -> Result<Self, PlotError> {
        let index = self.column(column)?;
        let number = value.parse::<f64>().ok();
        self.rows.retain(|row| {
            row[index] == value || (number.is_some() && row[index].parse().ok() == number)
        });
        Ok(self)
    }

    fn column(&self, name: &str) -> Result<usize, PlotError> {
        self.columns.iter().position(|column| column == name).ok_or_else(|| PlotError::NoColumn {
            name: name.to_owned(),
            columns: self.columns.join(", "),
        })
    }

    /// Returns one value for each combination of the columns `keys`, which are compared as text.
    ///
    /// # Errors
    /// If a column is missing, a value is not a number, or several rows have the same coordinates
    /// and `merge` refuses that.
    pub(crate) fn points(
        &self,
        keys: &[&str],
        value: &str,
        merge: Merge,
    ) -> Result<BTreeMap<Vec<String>, f64>, PlotError> {
        let columns =
            keys.iter().map(|key| self.column(key)).collect::<Result<Vec<_>, PlotError>>()?;
        let value_column = self.column(value)?;
        let mut points: BTreeMap<Vec<String>, (f64, f64, &Vec<String>)> = BTreeMap::new();
        for row in &self.rows {
            let coordinates = columns.iter().map(|&column| row[column].clone()).collect();
            let found = number(value, &row[value_column])?;
            let entry = points.entry(coordinates).or_insert((0.0, 0.0, row));
            if merge == Merge::Refuse && entry.1 > 0.0 {
                return Err(self.ambiguous(entry.2, row, &columns));
            }
            entry.0 = match merge {
                _ if entry.1 == 0.0 => found,
                Merge::Max => entry.0.max(found),
                Merge::Min => entry.0.min(found),
                Merge::Mean | Merge::Refuse => entry.0 + found,
            };
            entry.1 += 1.0;
        }
        if points.is_empty() {
            return Err(PlotError::Empty);
        }
        let shown = |(coordinates, (sum, count, _)): (Vec<String>, (f64, f64, _))| {
            (coordinates, if merge == Merge::Mean { sum / count } else { sum })
        };
        Ok(points.into_iter().map(shown).collect())
    }

    /// The error that names the parameters in which two rows differ. Columns after `version` are
    /// results.
    fn ambiguous(&self, one: &[String], other: &[String], keys: &[usize]) -> PlotError {
        let last = self.columns.iter().position(|name| name == "version");
        let differs = |&column: &usize| one[column] != other[column] && !keys.contains(&column);
        let names: Vec<&str> = (0..last.unwrap_or(self.columns.len()))
            .filter(differs)
            .map(|column| self.columns[column].as_str())
            .collect();
        let columns = if names.is_empty() { "nothing".into() } else { names.join(", ") };
        PlotError::Ambiguous { columns }
    }
}

/// Parses a field as a finite number.
pub(crate) fn number(column: &str, field: &str) -> Result<f64, PlotError> {
    let number = field.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| PlotError::NotANumber { name: column.into(), found: field.into() })
}

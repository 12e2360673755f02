//! Tables, and the points that are taken out of them.

use crate::PlotError;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A table of text with named columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// What becomes of rows that share a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// They are an error.
    Refuse,
    /// The largest value is shown.
    Max,
    /// The smallest value is shown.
    Min,
    /// Their mean is shown.
    Mean,
}

impl Table {
    /// Reads a CSV file without quotes.
    ///
    /// # Errors
    /// If it cannot be read, or a line has another number of fields than the first.
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
                return Err(wrong("quoted fields are not read".into()));
            }
            if row.len() != columns.len() {
                let (found, expected) = (row.len(), columns.len());
                return Err(wrong(format!("it has {found} fields, but the first line {expected}")));
            }
            rows.push(row);
        }
        Ok(Self { columns, rows })
    }

    /// The rows that have this value in a column. Numbers are compared as numbers.
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

    /// One value for each place: places are told by `keys`, the columns of which are compared as text.
    ///
    /// # Errors
    /// If a column is not there, a value is no number, or rows share a place and may not.
    pub(crate) fn places(
        &self,
        keys: &[&str],
        value: &str,
        merge: Merge,
    ) -> Result<BTreeMap<Vec<String>, f64>, PlotError> {
        let columns =
            keys.iter().map(|key| self.column(key)).collect::<Result<Vec<_>, PlotError>>()?;
        let value_column = self.column(value)?;
        let mut places: BTreeMap<Vec<String>, (f64, f64, &Vec<String>)> = BTreeMap::new();
        for row in &self.rows {
            let place = columns.iter().map(|&column| row[column].clone()).collect();
            let found = number(value, &row[value_column])?;
            let entry = places.entry(place).or_insert((0.0, 0.0, row));
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
        if places.is_empty() {
            return Err(PlotError::Empty);
        }
        let shown = |(place, (sum, count, _)): (Vec<String>, (f64, f64, _))| {
            (place, if merge == Merge::Mean { sum / count } else { sum })
        };
        Ok(places.into_iter().map(shown).collect())
    }

    /// The parameters in which two rows differ: results come behind the version.
    fn ambiguous(&self, one: &[String], other: &[String], places: &[usize]) -> PlotError {
        let last = self.columns.iter().position(|name| name == "version");
        let differs = |&column: &usize| one[column] != other[column] && !places.contains(&column);
        let names: Vec<&str> = (0..last.unwrap_or(self.columns.len()))
            .filter(differs)
            .map(|column| self.columns[column].as_str())
            .collect();
        let columns = if names.is_empty() { "nothing".into() } else { names.join(", ") };
        PlotError::Ambiguous { columns }
    }
}

/// A field that has to be a finite number.
pub(crate) fn number(column: &str, field: &str) -> Result<f64, PlotError> {
    let number = field.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| PlotError::NotANumber { name: column.into(), found: field.into() })
}

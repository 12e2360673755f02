//! Text in columns.

/// Aligns the columns of rows. The columns with the given numbers are aligned to the right.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]], right: &[usize]) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match right.contains(&column) {
            true => format!("{cell:>width$}", width = widths[column]),
            false => format!("{cell:<width$}", width = widths[column]),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["a", "1", "x"], ["long", "22", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows, &[1]), "a      1  x\nlong  22\n");
    }
}

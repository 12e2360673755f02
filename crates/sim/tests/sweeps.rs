//! Sweeps: a row is a function of its configuration, independent of threads and interruptions.

use forerun_sim::Parameters;
use forerun_sim::sweep::{RESULTS, Sweep, SweepError, Table, run};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

const GRID: &str = "target-ms = 20\ndraft-ms = [1, 5]\nmax-tokens = 30\nrepeats = 2\n\
    acceptance = { from = 0, to = 1, step = 0.1 }\ndraft-tokens = { from = 0, to = 8, step = 1 }";

fn read(folder: &Path, text: &str) -> Sweep {
    let file = folder.join("sweep.toml");
    fs::write(&file, text).unwrap();
    Sweep::read(&file).unwrap()
}

/// Completes the table of a sweep and returns its text.
fn complete(sweep: &Sweep, file: &Path, threads: usize) -> String {
    let mut table = Table::open(file, sweep).unwrap();
    run(sweep, &mut table, threads, |_| ControlFlow::Continue(())).unwrap();
    fs::read_to_string(file).unwrap()
}

#[test]
fn rows_do_not_depend_on_threads_or_interruptions() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = read(folder.path(), GRID);
    let one = complete(&sweep, &folder.path().join("one.csv"), 1);
    assert_eq!(one.lines().count(), 1 + 2 * 11 * 9);
    assert_eq!(complete(&sweep, &folder.path().join("three.csv"), 3), one);
    // A table that was stopped early or cut anywhere is continued.
    let file = folder.path().join("cut.csv");
    let mut table = Table::open(&file, &sweep).unwrap();
    let mut last = 0;
    run(&sweep, &mut table, 2, |progress| {
        last = progress.done;
        ControlFlow::Break(())
    })
    .unwrap();
    assert!(last > 0 && last < sweep.len() && table.rows == last);
    drop(table);
    for length in [5, 300, 301, one.len() / 2, one.len() - 1, one.len()] {
        fs::write(&file, &one[..length]).unwrap();
        let kept = Table::open(&file, &sweep).unwrap().rows;
        let lines = one[..length].matches('\n').count();
        assert_eq!(kept, lines.saturating_sub(1), "{length}");
        assert_eq!(complete(&sweep, &file, 2), one, "{length}");
    }
}

#[test]
fn a_table_with_rows_of_another_sweep_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table.csv");
    complete(&read(folder.path(), GRID), &file, 2);
    for (from, to, line) in [
        ("target-ms = 20", "target-ms = 21", 2),
        ("repeats = 2", "repeats = 3", 2),
        ("to = 8", "to = 7", 10),
        ("[1, 5]", "[1]", 101),
    ] {
        let other = read(folder.path(), &GRID.replace(from, to));
        let error = Table::open(&file, &other).err().unwrap();
        assert!(
            matches!(error, SweepError::OtherRows { line: found, .. } if found == line),
            "{error}"
        );
        assert!(error.to_string().contains("set `out` to another file"), "{error}");
    }
    fs::write(&file, "a,b\n1,2\n").unwrap();
    let sweep = read(folder.path(), GRID);
    assert!(matches!(Table::open(&file, &sweep), Err(SweepError::OtherRows { line: 1, .. })));
    fs::write(&file, "another file").unwrap();
    assert!(Table::open(&file, &sweep).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "another file");
}

/// A draft length of 0 is plain decoding. Drafts that are always wrong or always right have a
/// closed form.
#[test]
fn rows_have_the_expected_results() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = read(folder.path(), GRID);
    let table = complete(&sweep, &folder.path().join("table.csv"), 2);
    let header: Vec<&str> = table.lines().next().unwrap().split(',').collect();
    assert_eq!(header.len(), Parameters::NAMES.len() + 3 + RESULTS.len());
    let rows: Vec<Vec<&str>> =
        table.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let of = |row: &[&str], name: &str| -> f64 {
        let column = header.iter().position(|heading| *heading == name).unwrap();
        row[column].parse().unwrap()
    };
    let mut checked = 0;
    for row in &rows {
        assert_eq!(row.len(), header.len());
        let (length, draft_ms) = (of(row, "draft-tokens"), of(row, "draft-ms"));
        assert!((of(row, "tokens-per-s") * of(row, "mean-ms") / 30e3 - 1.0).abs() < 1e-5);
        if length == 0.0 {
            assert_eq!((of(row, "speedup"), of(row, "target-busy")), (1.0, 1.0));
            checked += 1;
        } else if of(row, "acceptance") == 0.0 {
            // The last tokens have shorter drafts.
            let drafts: f64 = (0..30).map(|token| length.min(f64::from(29 - token))).sum();
            assert_eq!(of(row, "mean-ms"), 600.0 + draft_ms * drafts);
            assert_eq!(
                (of(row, "unused-drafts"), of(row, "tokens-per-target-forward")),
                (1.0, 1.0)
            );
            checked += 1;
        } else if of(row, "acceptance") == 1.0 && length == 5.0 {
            assert_eq!(of(row, "mean-ms"), 5.0 * (20.0 + 5.0 * draft_ms));
            assert_eq!((of(row, "unused-drafts"), of(row, "acceptance-rate")), (0.0, 1.0));
            assert_eq!(of(row, "tokens-per-target-forward"), 6.0);
            checked += 1;
        }
    }
    assert_eq!(checked, 2 * 11 + 2 * 8 + 2);
}

#[test]
fn rows_depend_on_the_content_of_the_calibration() {
    let folder = tempfile::tempdir().unwrap();
    let measured = "link-ms = 0\nprompt-tokens = 4\nagreement = ['11', '00']\n\
        [target]\nmodel = 'a'\nlayers = 2\nfirst-ms = 50\nrows-ms = [[1, 10], [3, 12]]\n\
        [drafter]\nmodel = 'b'\nlayers = 2\nfirst-ms = 9\nrows-ms = [[1, 1], [2, 1.5]]\n";
    fs::write(folder.path().join("pair.toml"), measured).unwrap();
    let grid = "calibration = 'pair.toml'\nmax-tokens = 3\ndraft-tokens = [1, 2]\nrepeats = 2";
    let file = folder.path().join("table.csv");
    let text = complete(&read(folder.path(), grid), &file, 1);
    // 62 and 84 ms with two draft tokens.
    assert!(text.lines().nth(2).unwrap().contains(",73,"), "{text}");
    fs::write(folder.path().join("pair.toml"), measured.replace("50", "51")).unwrap();
    let error = Table::open(&file, &read(folder.path(), grid)).err().unwrap();
    assert!(matches!(error, SweepError::OtherRows { line: 2, .. }));
    fs::remove_file(folder.path().join("pair.toml")).unwrap();
    let error = Sweep::read(&folder.path().join("sweep.toml")).unwrap_err().to_string();
    assert!(error.contains("pair.toml"), "{error}");
}

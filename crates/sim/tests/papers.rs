//! Published tables are reproduced as far as their own numbers go.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_sim::SimulatedMethod;
use forerun_sim::papers::{DSI_LOOKAHEADS, DSI_PAIRS, PaperTable, expected_rounds};
use forerun_sim::{Calibration, Simulation};

/// The cells of a column as numbers.
fn column(table: PaperTable, index: usize) -> Vec<f64> {
    let table = table.simulate(40, None).unwrap();
    table.rows.iter().map(|row| row[index].parse().unwrap()).collect()
}

/// Table 14 follows from the drafter's and the target's speeds and one acceptance rate for a pair.
#[test]
fn speculative_decoding_takes_what_pearls_paper_measured() {
    let [simulated, published] = [3, 4].map(|index| column(PaperTable::SpeculativeLength, index));
    for (simulated, published) in simulated.iter().zip(&published) {
        let off = simulated / published - 1.0;
        assert!(off.abs() < 0.14, "{simulated} against {published}");
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    assert!((mean(&simulated) / mean(&published) - 1.0).abs() < 0.04);
}

/// Whoever is left out, PEARL is slower; and it is faster than taking turns.
#[test]
fn pearl_gains_by_each_of_its_parts() {
    let [without_pre, without_post, whole] =
        [1, 3, 5].map(|index| column(PaperTable::PearlAblations, index));
    for pair in 0..whole.len() {
        assert!(without_pre[pair] <= whole[pair] && without_post[pair] < whole[pair]);
    }
    let [turns, paper] = [3, 5].map(|index| column(PaperTable::PearlSpeed, index));
    assert!(turns.iter().zip(&paper).all(|(turns, paper)| turns < paper));
}

/// Against speculative decoding at its own best lookahead, which the paper does not tell.
#[test]
fn dsi_is_faster_than_speculative_decoding_at_its_best() {
    let ratios = column(PaperTable::DsiPairs, 4);
    assert_eq!(ratios.len(), DSI_PAIRS.len());
    assert!(ratios.iter().all(|ratio| (1.15..1.45).contains(ratio)), "{ratios:?}");
}

/// Every total of EasySpec's table 2 follows from the stage times and the acceptance.
#[test]
fn easyspecs_totals_are_within_a_tenth_of_the_published_ones() {
    let table = PaperTable::EasySpecLadder.simulate(4, None).unwrap();
    assert_eq!(table.rows.len(), 2 * 10 * 5 - 1);
    for row in &table.rows {
        let [simulated, published]: [f64; 2] = [9, 10].map(|index| row[index].parse().unwrap());
        assert!((simulated / published - 1.0).abs() < 0.1, "{row:?}");
    }
    // The drafter's part is accelerated as published, and it alone.
    let of = |method: &str, index: usize| -> f64 {
        let rows = table.rows.iter().filter(|row| row[3] == method);
        rows.map(|row| row[index].parse::<f64>().unwrap()).sum()
    };
    let [simulated, published] = [5, 6].map(|index| of("+ tree", index) / of("EasySpec", index));
    assert!((simulated / published - 1.0).abs() < 0.05, "{simulated} {published}");
}

/// PEARL's table 6 at γ = 5, the round of c, which is the best published value of every task.
#[test]
fn pearls_tasks_are_near_the_published_speeds() {
    let [simulated, published] = [3, 4].map(|index| column(PaperTable::PearlTasks, index));
    for (simulated, published) in simulated.iter().zip(&published) {
        assert!((simulated / published - 1.0).abs() < 0.25, "{simulated} against {published}");
    }
}

/// On the same devices PEARL keeps what it loses by sending caches alone.
#[test]
fn drafter_and_target_on_the_same_devices_keep_their_speed() {
    for (table, columns) in [
        (PaperTable::PearlShared, &[7][..]),
        (PaperTable::PearlSharedCategories, &[7]),
        (PaperTable::PearlSharedLanguages, &[2, 4]),
    ] {
        for &index in columns {
            let retained = column(table, index);
            assert!(retained.iter().all(|share| (0.9..=1.0).contains(share)), "{retained:?}");
        }
    }
}

/// DSI's appendix E: the closed form of speculative decoding's rounds is that of the production decoder, run
/// by run in expectation; and its sum is an upper bound, since a draft needs not go beyond the end.
#[test]
fn speculative_decoding_is_that_of_appendix_e() {
    const TEXTS: u64 = 400;
    assert_eq!((expected_rounds(0.0, 5, 50), expected_rounds(1.0, 4, 50)), (50.0, 10.0));
    for pair in &DSI_PAIRS {
        for lookahead in DSI_LOOKAHEADS {
            let simulation = pair.simulation(SimulatedMethod::Speculative, lookahead);
            let answers = (0..TEXTS).map(|seed| {
                let answer = Simulation { seed, ..simulation.clone() }.measure().unwrap();
                let rounds = answer.statistics.target_forwards as f64;
                // Each round's sum, and what is cut off from drafts at the end.
                let whole_ns = rounds * (lookahead as f64 * pair.draft_ms + pair.target_ms) * 1e6;
                assert!(answer.total_ns as f64 <= whole_ns + 1.0);
                rounds
            });
            let rounds: Vec<f64> = answers.collect();
            let mean = rounds.iter().sum::<f64>() / TEXTS as f64;
            let squares = rounds.iter().map(|own| (own - mean).powi(2)).sum::<f64>();
            let error = (squares / (TEXTS - 1) as f64 / TEXTS as f64).sqrt();
            let expected = expected_rounds(pair.acceptance, lookahead, simulation.max_tokens);
            // 30 comparisons: four standard errors.
            assert!(
                (mean - expected).abs() < 4.0 * error,
                "{} {lookahead}: {mean} {expected}",
                pair.name
            );
        }
    }
}

/// Section 3.1's example: at 80 % acceptance the target alone would have to be about as much faster as the
/// paper says, less what the drafter takes; and tensor parallelism gives less than that.
#[test]
fn replicas_against_a_faster_target() {
    let table = PaperTable::DsiAgainstTensorParallel.simulate(40, None).unwrap();
    let row = table.rows.iter().find(|row| row[0] == "0.8").unwrap();
    let [simulated, published]: [f64; 2] = [1, 2].map(|index| row[index].parse().unwrap());
    assert_eq!(row[2], "2.78");
    assert!(simulated > 1.58 && simulated < 1.3 * published, "{row:?}");
    let over = column(PaperTable::DsiAgainstTensorParallel, 5);
    assert!(over.is_sorted(), "{over:?}");
}

/// Figure 2b is of a recorded run, which has to be given.
#[test]
fn best_lengths_are_those_of_a_recorded_run() {
    let text = "link-ms = 0\nprompt-tokens = 4\nagreement = ['1101000111', '0']\n\
        [target]\nmodel = 'a'\nlayers = 2\nfirst-ms = 50\nrows-ms = [[1, 10]]\n\
        [drafter]\nmodel = 'b'\nlayers = 2\nfirst-ms = 9\nrows-ms = [[1, 1]]\n";
    let recorded = Calibration::parse(text).unwrap();
    let table = PaperTable::PearlBestLengths.simulate(1, Some(&recorded)).unwrap();
    assert!(table.title.contains("5 rounds of b"), "{}", table.title);
    let shares: Vec<&str> = table.rows.iter().map(|row| row[1].as_str()).take(4).collect();
    assert_eq!(shares, ["60.0 %", "20.0 %", "20.0 %", "0.0 %"]);
    assert_eq!(table.rows.last().unwrap()[1], "2 1 0 0");
    let error = PaperTable::PearlBestLengths.simulate(1, None).unwrap_err().to_string();
    assert!(error.contains("--calibration FILE"), "{error}");
}

//! Published tables are reproduced as far as their own numbers go.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_sim::papers::{DSI_PAIRS, PaperTable};

/// The cells of a column as numbers.
fn column(table: PaperTable, index: usize) -> Vec<f64> {
    let table = table.simulate(40).unwrap();
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

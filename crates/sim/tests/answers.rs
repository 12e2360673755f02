//! Automatic draft lengths over many short answers, as a server has them. A policy starts each
//! answer with what it has learned, and a drafter has to read each prompt.

use super::worlds::{Random, World, seeds};
use forerun_core::DraftShape;
use forerun_decode::{DecoderOptions, DraftLength, Drafting, METHODS, new_decoder};

const LENGTHS: [usize; 5] = [1, 2, 4, 8, 16];
const LONGEST: usize = 16;
const ANSWERS: usize = 24;

/// The tokens of a prompt and of its answer.
type Turn = (usize, usize);

fn turns(seed: u64) -> Vec<Turn> {
    let random = &mut Random(seed.wrapping_add(3 << 32));
    let tokens = |random: &mut Random, longest| random.log_between(10.0, longest) as usize;
    (0..ANSWERS).map(|_| (tokens(random, 300.0), tokens(random, 200.0))).collect()
}

/// Returns the time of all answers by a method.
fn run(
    world: &World,
    turns: &[Turn],
    method: &str,
    length: DraftLength,
    draft_tokens: usize,
) -> f64 {
    let shape = DraftShape::Chain { length: draft_tokens };
    let options = DecoderOptions {
        targets: world.replicas,
        expected_passes: Some(world.expected_passes),
        ..DecoderOptions::new(shape, length)
    };
    let method = METHODS.iter().find(|entry| entry.name == method).unwrap();
    let mut decoder = new_decoder(method, &options);
    let (mut tokens, mut ns) = (0, 0.0);
    for (number, &(prompt, max_tokens)) in turns.iter().enumerate() {
        decoder = decoder.for_next_answer(&options, prompt);
        let world = world.after(tokens, ns, number as u64);
        ns += world.answer(&mut *decoder, prompt, max_tokens);
        tokens += prompt + max_tokens;
    }
    ns
}

/// Returns the speed of a method's automatic length, compared with plain decoding, and with the
/// best of it and fixed lengths.
fn compare(world: &World, method: &str, seed: u64) -> [f64; 2] {
    let turns = turns(seed);
    let plain = run(world, &turns, "autoregressive", DraftLength::Fixed, 0);
    let fixed = LENGTHS.map(|length| run(world, &turns, method, DraftLength::Fixed, length));
    let best = fixed.iter().fold(plain, |best, &ns| best.min(ns));
    let auto = run(world, &turns, method, DraftLength::Auto, LONGEST);
    [plain / auto, best / auto]
}

/// Checks each method's automatic length. `least_of_plain`: the least speed compared with plain
/// decoding. `bounds`: for each method, its least mean speed compared with the best fixed length.
fn check(worlds: fn(u64) -> World, least_of_plain: f64, bounds: &[(&str, f64)]) {
    let seeds = seeds(8);
    let cases = seeds.end - seeds.start;
    for &(method, least_mean) in bounds {
        let speeds: Vec<[f64; 2]> =
            seeds.clone().map(|seed| compare(&worlds(seed), method, seed)).collect();
        let least = speeds.iter().map(|[to_plain, _]| *to_plain).fold(f64::INFINITY, f64::min);
        let mean = speeds.iter().map(|[_, to_best]| to_best).sum::<f64>() / cases as f64;
        let below = speeds.iter().filter(|[_, to_best]| *to_best < 0.95).count();
        eprintln!(
            "{method}: at least {least:.3} of plain decoding; {mean:.3} of the best fixed length on average, below 0.95 of it \
             in {below} of {cases}: {speeds:.2?}"
        );
        assert!(least >= least_of_plain && mean >= least_mean, "{method}: {least}, {mean}");
    }
}

#[test]
fn short_answers_in_random_worlds() {
    let bounds = [("speculative", 0.98), ("pearl", 0.98), ("dsi", 0.98), ("ssd", 0.95)];
    check(|seed| World::random(seed).with_noise(seed), 0.97, &bounds);
}

#[test]
fn short_answers_with_lookups() {
    let bounds = [("speculative", 0.98), ("pearl", 0.98), ("dsi", 0.98), ("ssd", 0.95)];
    check(World::with_lookups, 0.97, &bounds);
}

/// Idle core groups help the others, so a pass takes longer while another one drafts or verifies.
#[test]
fn short_answers_with_lent_cores() {
    let world = |seed| World::with_lent_cores(seed).with_noise(seed);
    check(world, 0.97, &[("pearl", 0.98), ("dsi", 0.95)]);
}

/// Trials of drafting may have bad luck, although drafts gain a tenth on average. The acceptance of
/// all tests so far shows that it was bad luck, so the next trial comes soon.
#[test]
fn trials_with_bad_luck_are_soon_repeated() {
    for (method, slow_limit, mean_limit) in [("pearl", 1.03, 1.115), ("dsi", 1.025, 1.11)] {
        let turns = [(20, 128); 10];
        let speed = |seed| {
            let world = World::with_even_text(0.8, 0.25, seed);
            let plain = run(&world, &turns, "autoregressive", DraftLength::Fixed, 0);
            plain / run(&world, &turns, method, DraftLength::Auto, LONGEST)
        };
        let mut speeds: Vec<f64> = (0..120).map(speed).collect();
        speeds.sort_by(f64::total_cmp);
        let mean = speeds.iter().sum::<f64>() / speeds.len() as f64;
        // One in twenty is slower than this.
        let slow = speeds[speeds.len() / 20];
        assert!(
            slow > slow_limit && mean > mean_limit,
            "{method}: {slow:.3}, {mean:.3}: {speeds:.2?}"
        );
    }
}

/// A drafter of several times the target's size. In an answer of an engine that has not answered
/// yet, a single draft would take as long as several tokens.
#[test]
fn a_drafter_that_is_slow_by_its_size_is_not_tried() {
    for passes in [2.0, 8.0] {
        let world = World::with_slow_drafter(passes);
        for method in METHODS.iter().filter(|entry| entry.drafting != Drafting::None) {
            let turns = [(10, 128)];
            let plain = run(&world, &turns, "autoregressive", DraftLength::Fixed, 0);
            let speed = plain / run(&world, &turns, method.name, DraftLength::Auto, LONGEST);
            assert!(speed > 0.98, "{}, a drafter of {passes} passes: {speed:.3}", method.name);
        }
    }
}

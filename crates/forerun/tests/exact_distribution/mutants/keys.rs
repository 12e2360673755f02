//! Mutants of keys: two decisions depend on one number.

use crate::methods::{chain, dsi, iid, pearl, speculative};
use crate::mutants::{Mutant, Setup, SharedModels};
use forerun_core::{DraftShape, Key, Purpose, Verification};
use forerun_decode::Decoder;
use std::rc::Rc;

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let shaped = |shape: DraftShape| Setup::with_model(models, move || speculative(&shape));
    let with_pearl = |length, options: &'static str| {
        Setup::with_model(models, move || pearl(length, options)).in_parallel()
    };
    let mut all = vec![
        Mutant::of_keys("uniform reused between positions", shaped(chain(2)), |key| {
            if key.purpose == Purpose::Accept { Key { position: 0, ..key } } else { key }
        }),
        Mutant::of_keys("Accept uniform reused between siblings", shaped(iid(&[2])), first_accept),
        Mutant::of_keys("Draft uniform reused between siblings", shaped(iid(&[2])), |key| {
            if key.purpose == Purpose::Draft { Key { candidate: 0, ..key } } else { key }
        }),
        Mutant::of_keys("accept uniform shared by drafters", two_drafters(models), first_accept),
    ];
    // As in PEARL's published code: the position that is pre-verified shares its uniform with the
    // next one.
    for options in ["eager", "paper"] {
        let name = format!("uniform reused between PEARL's positions, {options}");
        all.push(Mutant::of_keys(name, with_pearl(2, options), |key| {
            let position = key.position / 2;
            if key.purpose == Purpose::Accept { Key { position, ..key } } else { key }
        }));
    }
    // The next round draws or tests a position with the number that has decided where this round
    // ends.
    let in_blocks = |name, keys| {
        let (rule, least_deviation) = (Verification::Block, 0.01);
        Mutant { rule, least_deviation, ..Mutant::of_keys(name, shaped(chain(2)), keys) }
    };
    all.push(in_blocks("keys of draws by position", |key| {
        if key.purpose == Purpose::Draft { by_position(key) } else { key }
    }));
    all.push(in_blocks("keys of tests by position", |key| {
        if key.purpose == Purpose::Accept { by_position(key) } else { key }
    }));
    all
}

/// All candidates for a position are tested with one number.
fn first_accept(key: Key) -> Key {
    if key.purpose == Purpose::Accept { Key { candidate: 0, ..key } } else { key }
}

fn by_position(key: Key) -> Key {
    Key { position: key.position + key.candidate as usize, candidate: 0, ..key }
}

/// DSI with two drafters.
fn two_drafters(models: &SharedModels) -> Setup {
    let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 1).with_drafters(2)) };
    let mut setup = Setup::with_model(models, decoder).in_parallel();
    let models = Rc::clone(models);
    setup.drafters.push(Rc::new(move || models.other_drafter()));
    setup
}

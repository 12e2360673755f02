//! Answers on paced devices: real models, whose passes take the time of other devices.

use crate::common::{Pair, parse_placement};
use forerun::placement::available_cores;
use forerun::{DraftTokens, Engine, Method, Options, Request};

fn engine(pair: &Pair, method: Method, placement: &str) -> Engine {
    let options = Options {
        model: pair.target.clone().into(),
        draft_model: method.drafts().then(|| pair.drafter.clone().into()),
        method: Some(method.into()),
        draft_tokens: DraftTokens::Fixed(3),
        placement: Some(parse_placement(placement)),
        ..Options::default()
    };
    Engine::open(options).unwrap()
}

#[test]
fn an_answer_takes_the_time_of_its_passes_and_says_that_it_is_paced() {
    let (pair, core) = (Pair::generated(), available_cores()[0]);
    let request = Request { max_tokens: 12, ignore_eos: true, ..Request::default() };
    let plain =
        engine(&pair, Method::Autoregressive, &format!("target=cpu:{core},paced=300us-100us"));
    let answer = plain.complete(&pair.prompts[0], &request).unwrap();
    let paced = answer.paced.clone().unwrap();
    assert_eq!((&*paced.name, paced.passes), ("300us-100us", 12));
    // The prompt and eleven passes of a row.
    assert!(answer.total_ns >= 900_000 + 11 * 300_000);
    assert!(answer.summary().contains(" | paced as 300us-100us: "), "{}", answer.summary());
    assert_eq!(answer.trace.lanes, [format!("target cpu:{core}, paced")]);

    let cores = format!("drafter=cpu:{core},target=cpu:{core},target=cpu:{core}");
    let dsi = engine(&pair, Method::Dsi, &format!("{cores},paced=300us-100us"));
    let expected = ["drafter", "target", "target"].into_iter().zip(["", " #0", " #1"]);
    let expected = expected.map(|(role, number)| format!("{role} cpu:{core}{number}, paced"));
    let found = dsi.complete(&pair.prompts[0], &request).unwrap();
    assert_eq!((found.tokens, found.trace.lanes), (answer.tokens, expected.collect()));
    // Threads that wait most of the time stay on no core.
    assert!(!dsi.plan().is_pinned());
}

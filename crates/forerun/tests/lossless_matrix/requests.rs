//! The requests of the matrix: all ways of sampling, penalties, biases and grammars.

use super::TOKENS;
use forerun::method::Dry;
use forerun::text::GrammarKind;
use forerun::{Grammar, Request, SamplingOptions, Verification, VerificationChoice};

/// Returns requests with all temperatures and filters, and with a third of the other options. Every
/// second prompt requests log-probabilities.
pub(super) fn requests(number: usize) -> Vec<Request> {
    let seed = number as u64;
    let logprobs = number.is_multiple_of(2).then_some(3);
    let base = Request { max_tokens: TOKENS, ignore_eos: true, logprobs, ..Request::default() };
    let coupled = |temperature, top_k, top_p| Request {
        sampling: SamplingOptions { temperature, top_k, top_p, ..base.sampling.clone() },
        seed: Some(seed),
        verification: VerificationChoice::Always(Verification::Coupled),
        ..base.clone()
    };
    let filters = [
        base.clone(),
        coupled(0.3, 0, 1.0),
        coupled(0.8, 20, 1.0),
        coupled(1.0, 0, 0.9),
        coupled(1.5, 0, 1.0),
    ];
    let warm = || coupled(1.0, 0, 1.0).sampling;
    let xtc = SamplingOptions { xtc_probability: 0.5, ..warm() };
    let filtered = [
        SamplingOptions { min_p: 0.08, ..warm() },
        SamplingOptions { typical_p: 0.8, dynatemp_range: 0.5, ..warm() },
        SamplingOptions { top_n_sigma: 1.5, ..xtc },
    ];
    let mut others: Vec<Request> =
        filtered.map(|sampling| Request { sampling, ..coupled(1.0, 0, 1.0) }).into();
    for warm in [base.clone(), coupled(0.9, 0, 1.0)] {
        let own = || warm.sampling.clone();
        let logit_bias = [(10, 2.5), (101, 3.0), (97, -100.0)].into();
        // The oracle knows no breakers.
        let sequence_breakers = Vec::new();
        let dry = Dry { multiplier: 0.8, sequence_breakers, ..Dry::default() };
        // Negative penalties make the text repetitive, as prompt lookup needs.
        let [frequency_penalty, presence_penalty] = [-0.2, -0.6];
        let options = [
            SamplingOptions { repetition_penalty: 1.3, ..own() },
            SamplingOptions { frequency_penalty: 0.8, ..own() },
            SamplingOptions { presence_penalty: 1.5, ..own() },
            SamplingOptions { frequency_penalty, presence_penalty, ..own() },
            SamplingOptions { dry, ..own() },
            SamplingOptions { logit_bias, ..own() },
        ];
        others.extend(options.map(|sampling| Request { sampling, ..warm.clone() }));
    }
    for warm in [base.clone(), coupled(1.1, 40, 0.95)] {
        others.push(Request {
            sampling: SamplingOptions {
                min_p: 0.02,
                repetition_penalty: 1.15,
                frequency_penalty: 0.3,
                presence_penalty: 0.4,
                logit_bias: [(110, 1.5), (32, -1.0)].into(),
                ..warm.sampling.clone()
            },
            ..warm
        });
    }
    // Texts that end, and texts that are cut off.
    let word = r"(\w{1,9}[ ,]){1,6}\w+[.!]";
    let list = "root ::= item (\",\" item)*\nitem ::= [a-f0-9]+ | \"(\" root \")\" | [^a-z]";
    let schema = r#"{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string",
        "maxLength":6},"tags":{"type":"array","items":{"enum":["a","bc"]}}},"required":["id","name"]}"#;
    let schema = Grammar::new(GrammarKind::JsonSchema, schema);
    for (warm, grammar) in [
        (base.clone(), schema.clone()),
        (coupled(1.0, 0, 1.0), schema),
        (coupled(0.9, 0, 0.95), Grammar::regex(word)),
        (coupled(1.2, 0, 1.0), Grammar::gbnf(list)),
        (base.clone(), Grammar::gbnf(list)),
        (coupled(1.0, 30, 1.0), Grammar::json_object()),
    ] {
        let mut sampling = warm.sampling.clone();
        // Quotes and brackets, so that some texts are complete.
        sampling.logit_bias = [(34, 2.0), (93, 1.0), (125, 2.0), (44, 1.0)].into();
        sampling.frequency_penalty = 0.3;
        others.push(Request { grammar: Some(grammar), ignore_eos: false, sampling, ..warm });
    }
    let others = others.into_iter().skip(number % 3).step_by(3);
    filters.into_iter().chain(others).collect()
}

/// Returns requests whose grammars determine runs of tokens, from the start or after tokens that
/// the model chooses. Biases and penalties are for or against these tokens.
pub(super) fn forced_requests(number: usize) -> Vec<Request> {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["weather", "wind"]},
            "temperature": {"type": "integer"},
            "unit": {"const": "celsius"},
        },
        "required": ["kind", "temperature", "unit"],
        "additionalProperties": false,
    });
    let grammars = [Grammar::regex("(abc)+"), Grammar::json_schema(&schema)];
    let options = [
        SamplingOptions::default(),
        SamplingOptions { temperature: 1.0, ..SamplingOptions::default() },
        SamplingOptions {
            temperature: 0.9,
            repetition_penalty: 1.4,
            frequency_penalty: 0.8,
            logit_bias: [(98, -20.0), (99, -100.0), (101, 5.0)].into(),
            ..SamplingOptions::default()
        },
        SamplingOptions {
            presence_penalty: -0.6,
            logit_bias: [(97, 10.0), (116, -100.0)].into(),
            ..SamplingOptions::default()
        },
    ];
    let all = grammars.iter().flat_map(|grammar| options.iter().map(move |of| (grammar, of)));
    let request = |(grammar, sampling): (&Grammar, &SamplingOptions)| Request {
        max_tokens: TOKENS,
        grammar: Some(grammar.clone()),
        sampling: sampling.clone(),
        seed: Some(number as u64),
        logprobs: number.is_multiple_of(2).then_some(3),
        verification: VerificationChoice::Always(Verification::Coupled),
        ..Request::default()
    };
    // Two prompts have all of them.
    all.skip(number % 2).step_by(2).map(request).collect()
}

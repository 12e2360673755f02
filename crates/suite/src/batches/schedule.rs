//! Random schedules submit requests, cancel them, let them fail, release sequences, and run passes
//! over the unfinished requests. The caches have a budget of a few pages, so that sequences evict
//! each other.

use super::*;

/// A request that owns its parts.
#[derive(Clone, Debug)]
struct Request {
    sequence: u64,
    tokens: Vec<TokenId>,
    tree: TokenTree,
    first_row: usize,
    rows_for: RowUse,
    features_from: Option<usize>,
    /// Whether the rows of the tree are computed with layers in one group, after exact tokens.
    is_grouped: bool,
}

impl Request {
    fn view<'a>(&'a self, groups: &'a LayerGroups, cancel: &'a AtomicBool) -> ForwardRequest<'a> {
        let Self { sequence, tokens, tree, first_row, rows_for, features_from, is_grouped } = self;
        let order = match is_grouped {
            true => LayerOrder::Groups(groups),
            false => LayerOrder::Sequential,
        };
        ForwardRequest {
            first_row: *first_row,
            rows_for: *rows_for,
            features_from: *features_from,
            order,
            exact_tokens: tokens.len(),
            cancel,
            ..ForwardRequest::new(SequenceId(*sequence), tokens, tree)
        }
    }
}

/// What happens in a schedule.
#[derive(Clone, Debug)]
enum Event {
    Submit(Request),
    /// Cancels one of the unfinished requests (modulo their number).
    Cancel(usize),
    /// Releases a sequence.
    Release(u64),
    /// Runs a pass.
    Pass,
}

/// Events, and the room that they have.
#[derive(Clone, Debug)]
struct Schedule {
    threads: usize,
    /// The budget of pages.
    pages: usize,
    /// The budget of states of recurrent layers.
    states: usize,
    events: Vec<Event>,
    /// The event whose request has a token that no vocabulary has.
    out_of_vocabulary: Option<usize>,
}

fn request() -> impl Strategy<Value = Request> {
    let nodes = prop::collection::vec((0..9_usize, 0..4_u32), 0..12);
    // Prompts begin alike, for up to several pages and for more than a pass takes.
    let len = prop_oneof![1..40_usize, 1..3 * PAGE_ROWS, 200..600_usize];
    let flags = (any::<bool>(), prop::bool::weighted(0.2));
    let best = |count| RowUse::Best { count, tokens: 240 };
    let rows_for = prop_oneof![
        2 => Just(RowUse::Full),
        2 => Just(best(1)),
        1 => (2..70_usize).prop_map(best)
    ];
    (0..6_u64, len, 0..3_u32, 0..5_usize, nodes, 0..14_usize, flags, rows_for).prop_map(
        |(sequence, len, text, branch, nodes, first_row, (features, is_grouped), rows_for)| {
            let token = |index: usize| {
                let text = if index < branch * 50 { 0 } else { text };
                (index as u32 * 7 + text * 3) % 250
            };
            let tokens: Vec<TokenId> = (0..len).map(token).collect();
            let mut tree = TokenTree::new();
            for (parent, token) in nodes {
                tree.push(parent.checked_sub(1).filter(|&node| node < tree.len()), token);
            }
            // Rows of held approximate nodes depend on how these were computed.
            let first_row = if is_grouped { 0 } else { first_row.min(tree.len()) };
            let features_from = (features && !is_grouped).then_some(len / 2);
            Request { sequence, tokens, tree, first_row, rows_for, features_from, is_grouped }
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => request().prop_map(Event::Submit),
        1 => (0..8_usize).prop_map(Event::Cancel),
        1 => (0..6_u64).prop_map(Event::Release),
        6 => Just(Event::Pass),
    ]
}

fn schedule<D: Device>() -> impl Strategy<Value = Schedule> {
    let events = prop::collection::vec(event(), 1..40);
    let out_of_vocabulary = prop::option::weighted(0.3, 0..8_usize);
    (1..=D::THREADS, 1..14_usize, 1..60_usize, events, out_of_vocabulary).prop_map(
        |(threads, pages, states, events, out_of_vocabulary)| Schedule {
            threads,
            pages,
            states,
            events,
            out_of_vocabulary,
        },
    )
}

/// A request that has been submitted.
struct Submitted {
    request: Request,
    cancel: AtomicBool,
    progress: Progress,
}

/// A model that plays a schedule, and what it needs to know of requests that are alone.
struct Player<'a, D: Device> {
    device: &'a D,
    kind: Kind<D::Variant>,
    weights: Arc<D::Weights>,
    model: CachedTransformer<D::Model>,
    groups: LayerGroups,
    submitted: Vec<Submitted>,
}

impl<'a, D: Device> Player<'a, D> {
    fn new(device: &'a D, kind: Kind<D::Variant>, schedule: &Schedule) -> Self {
        let weights = kind.weights(device);
        let layers = kind.layers(device);
        let model = model(device, &weights, kind.run(schedule.threads), layers);
        let mut model = model.with_page_budget(schedule.pages);
        if model.architecture().state_bytes() > 0 {
            model = model.with_state_budget(schedule.states);
        }
        let groups = LayerGroups::of_sizes(&[layers]);
        Self { device, kind, weights, model, groups, submitted: Vec::new() }
    }

    /// Submits a request, if its sequence has none.
    fn submit(&mut self, request: Request) {
        if self.submitted.iter().all(|other| other.request.sequence != request.sequence) {
            let (cancel, progress) = (AtomicBool::new(false), Progress::default());
            self.submitted.push(Submitted { request, cancel, progress });
        }
    }

    /// Returns the finished requests, and the tokens of all that have been computed.
    fn progress(&self) -> (usize, usize) {
        let computed = self.submitted.iter().map(|s| s.progress.computed_tokens).sum();
        (computed, self.submitted.iter().filter(|s| s.progress.result.is_some()).count())
    }

    /// Runs a pass over all unfinished requests, and checks the answers of those that end.
    fn pass(&mut self) -> TestCaseResult {
        if self.submitted.is_empty() {
            return Ok(());
        }
        let before = self.progress();
        let groups = &self.groups;
        let batch = self.submitted.iter_mut().map(|Submitted { request, cancel, progress }| {
            BatchEntry { request: request.view(groups, cancel), progress }
        });
        self.model.forward(&mut batch.collect::<Vec<_>>());
        prop_assert!(self.progress() != before, "a pass without progress");
        let ended = self.submitted.extract_if(.., |other| other.progress.result.is_some());
        for Submitted { request, cancel, progress } in ended.collect::<Vec<_>>() {
            let result = progress.result.unwrap();
            if cancel.load(Ordering::Relaxed) && result == Err(ModelError::Cancelled) {
                continue;
            }
            prop_assert!(bits(&result) == bits(&self.alone(&request)), "{:?}", request);
        }
        Ok(())
    }

    /// Returns the answer to a request that has a model of its own.
    fn alone(&self, request: &Request) -> Result<ForwardOutput, ModelError> {
        let never = AtomicBool::new(false);
        let layers = self.model.architecture().layers.len();
        let mut model = model(self.device, &self.weights, self.kind.run(1), layers);
        let whole = Request { rows_for: RowUse::Full, ..request.clone() };
        let output = model.logits(&whole.view(&self.groups, &never))?;
        // If many tokens are read, rows are whole.
        Ok(match request.rows_for {
            RowUse::Best { count, .. } if count <= D::BEST_TOKENS => {
                reduced_to(output, request.rows_for)
            }
            _ => output,
        })
    }

    fn play(mut self, schedule: Schedule) -> TestCaseResult {
        for (number, event) in schedule.events.into_iter().enumerate() {
            match event {
                Event::Submit(mut request) => {
                    if schedule.out_of_vocabulary == Some(number) {
                        request.tokens[0] = 5_000;
                    }
                    self.submit(request);
                }
                Event::Cancel(index) => {
                    let index = index % self.submitted.len().max(1);
                    if let Some(submitted) = self.submitted.get(index) {
                        submitted.cancel.store(true, Ordering::Relaxed);
                    }
                }
                Event::Release(sequence) => self.model.release(SequenceId(sequence)),
                Event::Pass => self.pass()?,
            }
        }
        while !self.submitted.is_empty() {
            self.pass()?;
        }
        // Between passes, at most a pass's own pages exceed the budget.
        let needed = self.model.pool().allocated().min(schedule.pages);
        self.model.logits(&ForwardRequest::next_token(SequenceId(99), &[1])).unwrap();
        let most = needed.max(1).max(schedule.pages);
        prop_assert!(self.model.pool().allocated() <= most, "more than the budget");
        Ok(())
    }
}

type Bits = (Vec<u32>, Vec<(usize, Vec<(TokenId, u32)>)>, Option<FeatureRows>);

/// Returns the bits of an answer.
fn bits(result: &Result<ForwardOutput, ModelError>) -> Result<Bits, ModelError> {
    let output = result.as_ref().map_err(Clone::clone)?;
    let logits = output.logits.iter().map(|logit| logit.to_bits()).collect();
    let ranked = |row: &BestTokens| {
        row.ranked.iter().map(|&(token, logit)| (token, logit.to_bits())).collect()
    };
    let best = output.best.iter().map(|row| (row.tokens, ranked(row))).collect();
    Ok((logits, best, output.features.clone()))
}

pub(super) fn a_request_has_the_same_bits_in_company<D: Device>(device: &D) {
    let strategy = (prop::sample::select(Kind::all(device)), schedule::<D>());
    check(device.effort().schedules, &strategy, |(kind, schedule)| {
        Player::new(device, kind, &schedule).play(schedule)
    });
}

/// The smallest schedules that random ones once found, each with a budget of one page.
pub(super) fn schedules_that_once_failed_have_the_same_bits<D: Device>(device: &D) {
    let single = Request {
        sequence: 0,
        tokens: vec![0],
        tree: TokenTree::new(),
        first_row: 0,
        rows_for: RowUse::Full,
        features_from: None,
        is_grouped: false,
    };
    let grouped = Request { tree: TokenTree::chain(&[0]), is_grouped: true, ..single.clone() };
    let parents = [None, None, None, Some(2), None, None, None, None];
    let long = Request {
        tokens: text(377, 7),
        tree: tree_of(parents.map(|parent| (parent, 0))),
        first_row: 5,
        features_from: Some(188),
        ..single.clone()
    };
    for events in [
        vec![Event::Submit(single.clone())],
        vec![Event::Submit(long), Event::Release(0), Event::Release(0)],
        vec![Event::Submit(grouped), Event::Submit(single.clone()), Event::Submit(single)],
    ] {
        let examples = 0..device.offer().configs.len();
        for example in examples.step_by(device.effort().step_of_examples) {
            let kind = Kind::of(device, example, WeightType::F32);
            let events = events.clone();
            let (threads, pages, states, out_of_vocabulary) = (1, 1, 60, None);
            let schedule = Schedule { threads, pages, states, events, out_of_vocabulary };
            Player::new(device, kind, &schedule).play(schedule).unwrap();
        }
    }
}

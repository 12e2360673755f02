//! What options become, and which are refused.

use super::*;
use crate::easyspec::LayerStrategy;
use forerun_core::Role;
use forerun_core::UnknownValue;
use forerun_draft::{CalibrationPolicy, PHRASE_TOKENS};

fn plan(change: impl FnOnce(&mut Options)) -> Result<Plan, String> {
    let mut options = Options { model: "target".into(), ..Options::default() };
    change(&mut options);
    Plan::on_cores(options, &[0, 1]).map_err(|error| error.to_string())
}

fn drafts(draft_tokens: DraftTokens, tree: &str, drafter: DrafterKind) -> Result<Drafts, String> {
    let tree = tree.parse::<Tree>().map_err(|error| error.to_string())?;
    drafts::drafts(draft_tokens, &tree, drafter).map_err(|error| error.to_string())
}

#[test]
fn threads_limit_the_cores() -> Result<(), String> {
    let one = plan(|options| options.threads = Some(1))?;
    assert_eq!(one.placement().to_string(), "drafter=cpu:0,target=cpu:0,shared");
    let both = plan(|options| options.threads = Some(2))?;
    assert_eq!(both.placement(), plan(|_| ())?.placement());
    for threads in [0, 3] {
        let error = plan(|options| options.threads = Some(threads)).err();
        let expected = format!(
            "`threads` is {threads}, but it must be 1 to 2, the number of cores that this process \
             may use"
        );
        assert_eq!(error, Some(expected));
    }
    let both_options = plan(|options| {
        (options.threads, options.placement) = (Some(1), "target=cpu:0".parse().ok());
    });
    assert!(both_options.is_err_and(|error| error.contains("leave one out")));
    Ok(())
}

#[test]
fn a_context_has_room_for_a_prompt_and_an_answer() -> Result<(), String> {
    assert_eq!(plan(|_| ())?.context_length(), None);
    assert_eq!(plan(|options| options.context_length = Some(2))?.context_length(), Some(2));
    let error = plan(|options| options.context_length = Some(1)).err().unwrap_or_default();
    assert!(error.starts_with("`context_length` is 1, but it must be at least 2"), "{error}");
    Ok(())
}

#[test]
fn threads_are_pinned_only_on_request() -> Result<(), String> {
    assert!(!plan(|_| ())?.is_pinned());
    assert!(!plan(|options| options.threads = Some(1))?.is_pinned());
    assert!(plan(|options| options.pin = true)?.is_pinned());
    let named = plan(|options| options.placement = "target=cpu:0".parse().ok())?;
    assert!(named.is_pinned() && named.workers().iter().all(|worker| worker.pinned));
    let drafted = plan(|options| options.drafter = Some(DrafterKind::PromptLookup.into()))?;
    assert!(drafted.workers().iter().all(|worker| !worker.pinned));
    Ok(())
}

#[test]
fn defaults_follow_from_the_options() -> Result<(), String> {
    let plain = plan(|_| ())?;
    assert_eq!((plain.method(), plain.drafter()), (Method::Autoregressive, DrafterKind::None));
    let drafted = plan(|options| options.draft_model = Some("drafter".into()))?;
    assert_eq!(drafted.method(), Method::Speculative);
    assert_eq!(drafted.placement().to_string(), "drafter=cpu:0-1,target=cpu:0-1,shared");
    assert_eq!(drafted.length(), DraftLength::Auto);
    let parallel = plan(|options| {
        options.draft_model = Some("drafter".into());
        options.method = Some(Method::Pearl.into());
    })?;
    assert_eq!(parallel.placement().to_string(), "drafter=cpu:0,target=cpu:1");
    let lookup = plan(|options| options.drafter = Some(DrafterKind::PromptLookup.into()))?;
    assert_eq!(lookup.method(), Method::Speculative);
    assert_eq!(lookup.placement().devices().len(), 1);
    let easyspec = |options: &mut Options| {
        options.draft_model = Some("drafter".into());
        let calibration = CalibrationPolicy::Never;
        options.drafter =
            Some(DrafterOptions::EasySpec(EasySpec { calibration, ..EasySpec::default() }));
    };
    let layer_parallel = plan(easyspec)?;
    assert_eq!(layer_parallel.placement().to_string(), "drafter=cpu:0-1,target=cpu:0-1,shared");
    let expected =
        EasySpec { calibration: CalibrationPolicy::Never, layers: LayerStrategy::Parallel(4) };
    assert_eq!(
        (layer_parallel.method(), layer_parallel.easyspec()),
        (Method::Speculative, Some(&expected))
    );
    let plain = plan(|options| {
        easyspec(options);
        options.method = Some(Method::Autoregressive.into());
    })?;
    assert_eq!(plain.easyspec(), None);
    let several = plan(|options| {
        (options.method, options.draft_model) = (Some(Method::Dsi.into()), Some("drafter".into()));
        options.additional_drafters =
            ["other", "prompt-lookup"].into_iter().flat_map(str::parse).collect();
    })?;
    let expected = [
        AdditionalDrafter::Model("other".into()),
        AdditionalDrafter::Tokens(DrafterKind::PromptLookup),
    ];
    assert_eq!(several.additional_drafters(), expected);
    let shared = "drafter=cpu:0,drafter=cpu:0,target=cpu:1,shared";
    assert_eq!(several.placement().to_string(), shared);
    for method in [Method::Pearl, Method::Auto, Method::Speculative] {
        let several = plan(|options| {
            (options.method, options.draft_model) = (Some(method.into()), Some("drafter".into()));
            options.additional_drafters = "other".parse().into_iter().collect();
        })?;
        let separate =
            if method == Method::Speculative { "0-1,target=cpu:0-1" } else { "0,target=cpu:1" };
        let group = separate.split(',').next().unwrap_or_default();
        let expected = format!("drafter=cpu:{group},drafter=cpu:{separate},shared");
        assert_eq!(several.placement().to_string(), expected, "{method}");
    }
    // One option switches a drafted run to its baseline.
    let baseline = plan(|options| {
        options.draft_model = Some("drafter".into());
        options.method = Some(Method::Autoregressive.into());
    })?;
    assert_eq!((baseline.drafter(), baseline.draft_model()), (DrafterKind::None, None));
    Ok(())
}

#[test]
fn pages_are_kept_of_targets_on_cores() {
    let cache_dir = |options: &mut Options| options.cache_dir = Some("pages".into());
    assert!(plan(cache_dir).is_ok());
    for placement in ["target=gpu:0", "target=gpu:0/cpu:0", "target=rank:0+rank:1"] {
        let error = plan(|options| {
            cache_dir(options);
            options.placement = Some(placement.parse().unwrap_or_else(|it| panic!("{it}")));
        });
        assert!(error.is_err_and(|error| error.contains("`cache_dir`")), "{placement}");
    }
    let error = plan(|options| options.cache_dir_size = Some(1));
    assert!(error.is_err_and(|error| error.contains("no effect without `cache_dir`")));
    let error = plan(|options| {
        cache_dir(options);
        options.cache_dir_size = Some(0);
    });
    assert!(error.is_err_and(|error| error.contains("`cache_dir_size` is 0")));
}

#[test]
fn drafters_of_auto_are_also_on_the_targets_worker() -> Result<(), String> {
    let workers = |change: fn(&mut Options)| {
        let plan = plan(|options| {
            options.method = Some(Method::Auto.into());
            options.draft_model = Some("drafter".into());
            change(options);
        })?;
        let workers = plan.workers().into_iter().map(|worker| {
            let roles = worker.roles().into_iter().map(|role| match role {
                Role::Target(index) => format!("target {index}"),
                Role::Drafter(index) => format!("drafter {index}"),
            });
            let roles: Vec<String> = roles.collect();
            format!("{}: {}", worker.name, roles.join(", "))
        });
        Ok::<Vec<String>, String>(workers.collect())
    };
    let one = ["drafter cpu:0: drafter 0", "target and drafter cpu:1: target 0, drafter 1"];
    assert_eq!(workers(|_| ())?, one);
    let two = |o: &mut Options| {
        o.additional_drafters = vec![AdditionalDrafter::Tokens(DrafterKind::PromptLookup)];
    };
    let expected = [
        "drafter: drafter 1",
        "drafter cpu:0: drafter 0",
        "target and drafter cpu:1: target 0, drafter 2, drafter 3",
    ];
    assert_eq!(workers(two)?, expected);
    // Cores that are named are not lent.
    let separate = ["drafter cpu:0: drafter 0", "target cpu:1: target 0"];
    assert_eq!(workers(|o| o.pin = true)?, separate);
    let named = |o: &mut Options| o.placement = "drafter=cpu:0,target=cpu:1".parse().ok();
    assert_eq!(workers(named)?, separate);
    assert_eq!(workers(|o| o.drafter = Some(DrafterKind::EasySpec.into()))?, separate);
    assert_eq!(workers(|o| o.method = Some(Method::Pearl.into()))?, separate);
    Ok(())
}

#[test]
fn models_on_devices_of_their_own_use_the_fastest_method() -> Result<(), String> {
    let method = |change: fn(&mut Options)| {
        let plan = plan(|options| {
            options.draft_model = Some("drafter".into());
            options.placement = "drafter=cpu:0,target=cpu:1".parse().ok();
            change(options);
        })?;
        Ok::<_, String>(plan.method())
    };
    assert_eq!(method(|_| ())?, Method::Auto);
    assert_eq!(method(|o| o.drafter = Some(DrafterKind::EasySpec.into()))?, Method::Auto);
    // The models take turns, or have lengths that mean something else to each method.
    let shared = |o: &mut Options| o.placement = "drafter=cpu:0,target=cpu:0,shared".parse().ok();
    assert_eq!(method(shared)?, Method::Speculative);
    let fixed = |o: &mut Options| o.draft_tokens = DraftTokens::Fixed(4);
    assert_eq!(method(fixed)?, Method::Speculative);
    // What a checkpoint that is not on disk yet reads is not known.
    assert_eq!(method(|o| o.drafter = Some(DrafterKind::Parallel.into()))?, Method::Speculative);
    let on_ranks = |o: &mut Options| o.placement = "drafter=rank:0,target=rank:1".parse().ok();
    assert_eq!(method(on_ranks)?, Method::Auto);
    Ok(())
}

#[test]
fn auto_is_speculative_decoding_where_nothing_else_is_supported() -> Result<(), String> {
    let only_speculative: [fn(&mut Options); 3] = [
        |o| o.draft_tokens = DraftTokens::Assisted,
        |o| o.drafter = Some(DrafterKind::Eagle.into()),
        |o| o.drafter = Some(DrafterKind::Ouroboros.into()),
    ];
    for method in [None, Some(Method::Auto)] {
        for change in only_speculative {
            let plan = plan(|options| {
                options.draft_model = Some("drafter".into());
                options.placement = "drafter=cpu:0,target=cpu:1".parse().ok();
                options.method = method.map(Method::into);
                change(options);
            })?;
            assert_eq!(plan.method(), Method::Speculative);
        }
    }
    for (tree, lookup) in [(Tree::Auto, Lookup::None), (Tree::None, Lookup::Suffix)] {
        let expected = MethodOptions::Speculative { tree: tree.clone(), lookup };
        for method in [None, Some(Method::Auto), Some(Method::Speculative)] {
            let found = MethodOptions::of(method, tree.clone(), lookup, PearlOptions::default());
            assert_eq!(found, Ok(Some(expected.clone())));
        }
    }
    Ok(())
}

#[test]
fn only_easyspec_has_layers_and_a_calibration() {
    let of = |kind, layers: Option<&str>, calibration| {
        DrafterOptions::of(None, kind, layers.and_then(|text| text.parse().ok()), calibration)
            .map_err(|error| error.to_string())
    };
    let never = Some(CalibrationPolicy::Never);
    assert!(of(Some(DrafterKind::EasySpec), Some("0,1-2"), never).is_ok());
    let refused = of(None, Some("0,1-2"), None).err().unwrap_or_default();
    assert!(refused.starts_with("`layer_groups` has no effect without `drafter = easyspec`"));
    let refused = of(Some(DrafterKind::Model), None, never).err().unwrap_or_default();
    assert!(refused.contains("leave `calibration` out"));
    let plain = DrafterOptions::of(Some(Method::Autoregressive), None, None, never);
    assert_eq!(plain, Ok(None));
}

#[test]
fn a_method_has_only_its_own_options() {
    let paper: PearlOptions = "paper".parse().unwrap_or_default();
    let eager = PearlOptions::default();
    let of = |method, tree, lookup, pearl| {
        MethodOptions::of(Some(method), tree, lookup, pearl).map_err(|error| error.to_string())
    };
    let pearl = of(Method::Pearl, Tree::None, Lookup::None, paper);
    assert_eq!(pearl, Ok(Some(MethodOptions::Pearl(paper))));
    let ssd = of(Method::Ssd, Tree::None, Lookup::Suffix, eager);
    assert_eq!(ssd, Ok(Some(MethodOptions::Ssd { lookup: Lookup::Suffix })));
    // One option switches to the baseline, for which no option of drafts counts.
    let plain = of(Method::Autoregressive, Tree::Auto, Lookup::Suffix, paper);
    assert_eq!(plain, Ok(Some(Method::Autoregressive.into())));
    for (method, tree, lookup, pearl, message) in [
        (
            Method::Dsi,
            Tree::Auto,
            Lookup::None,
            eager,
            "the method dsi drafts chains: leave `tree`",
        ),
        (
            Method::Pearl,
            Tree::None,
            Lookup::Suffix,
            eager,
            "whole drafts, and the method pearl has",
        ),
        (Method::Ssd, Tree::None, Lookup::None, paper, "`pearl` has no effect without `method = p"),
    ] {
        let refused = of(method, tree, lookup, pearl);
        assert!(refused.as_ref().is_err_and(|error| error.contains(message)), "{refused:?}");
    }
}

#[test]
fn conflicting_options_are_refused_with_a_way_out() {
    let refuse = |change: fn(&mut Options), word: &str| {
        let message = plan(change).err().unwrap_or_default();
        assert!(message.contains(word), "{word}: {message}");
    };
    refuse(|o| o.drafter = Some(DrafterKind::Model.into()), "set `draft_model`");
    refuse(|o| o.drafter = Some(DrafterKind::EasySpec.into()), "\"easyspec\" needs a checkpoint");
    refuse(
        |o| {
            let layers = LayerStrategy::Parallel(0);
            let easyspec = EasySpec { layers, ..EasySpec::default() };
            o.drafter = Some(DrafterOptions::EasySpec(easyspec));
            o.draft_model = Some("x".into());
        },
        "`layer_parallel_size` is 0",
    );
    refuse(
        |o| {
            (o.drafter, o.draft_model) = (Some(DrafterKind::EasySpec.into()), Some("x".into()));
            o.placement = "drafter=rank:0/rank:1,target=rank:2".parse().ok();
        },
        "the pipeline stages rank:0/rank:1",
    );
    refuse(
        |o| {
            o.drafter = Some(DrafterKind::PromptLookup.into());
            let (method, lookup) = (Method::Dsi, Lookup::None);
            o.method = Some(MethodOptions::Own { method, tree: Tree::Auto, lookup });
        },
        "the method dsi drafts chains",
    );
    refuse(
        |o| {
            o.drafter = Some(DrafterKind::PromptLookup.into());
            o.method = Some(Method::Pearl.into());
            o.draft_tokens = DraftTokens::Assisted;
        },
        "the method pearl has none",
    );
    for (tree, word) in [
        ("top:0", "top:0"),
        ("top:4x5:0", "top:4x5:0"),
        ("top:30x20", "512 nodes"),
        ("sampled:9,9,9,9,9,9,9,9,9", "512 nodes"),
        ("ranked:0", "ranked:0"),
        ("ranked:513", "512 nodes"),
    ] {
        let message = drafts(DraftTokens::Auto, tree, DrafterKind::Model).err();
        assert!(message.as_ref().is_some_and(|message| message.contains(word)), "{message:?}");
    }
    let lookahead = drafts(DraftTokens::Auto, "auto", DrafterKind::Lookahead).err();
    assert!(lookahead.is_some_and(|error| error.contains("lookahead, which decides the shape")));
    let assisted = drafts(DraftTokens::Assisted, "auto", DrafterKind::Model).err();
    assert!(assisted.is_some_and(|error| error.contains("or to the largest depth")));
    refuse(|o| o.placement = "target=cpu:7".parse().ok(), "core 7");
    refuse(
        |o| {
            o.draft_model = Some("x".into());
            o.placement = "target=cpu:1".parse().ok();
        },
        "no drafter group",
    );
}

/// The kind of drafter is enough: the checkpoint may still have to be downloaded.
#[test]
fn drafters_that_need_more_than_their_method_offers_are_refused() {
    use DrafterKind as Kind;
    let lookup = MethodOptions::Speculative { tree: Tree::None, lookup: Lookup::Suffix };
    for (drafter, method, additional, word) in [
        (Kind::Lookahead, Method::Dsi.into(), None, "does not wait for"),
        (Kind::Ouroboros, Method::Pearl.into(), None, "the drafter ouroboros learns"),
        (Kind::Medusa, Method::Pearl.into(), None, "the drafter medusa reads hidden states"),
        (
            Kind::Model,
            Method::Speculative.into(),
            Some("lookahead"),
            "the drafter lookahead learns",
        ),
        (Kind::PromptLookup, Method::Dsi.into(), Some("lookahead"), "the drafter lookahead learns"),
        (Kind::Lookahead, Method::Speculative.into(), Some("suffix"), "`additional_drafters` out"),
        (Kind::Lookahead, lookup, None, "the drafter lookahead learns from all of its own"),
        (Kind::Model, Method::Ssd.into(), Some("suffix"), "the method ssd has one drafter"),
    ] {
        let message = plan(|options| {
            options.draft_model = drafter.has_model().then(|| "x".into());
            (options.drafter, options.method) = (Some(drafter.into()), Some(method));
            options.additional_drafters = additional.into_iter().flat_map(str::parse).collect();
        });
        let message = message.err().unwrap_or_default();
        assert!(message.contains(word), "{word}: {message}");
    }
}

#[test]
fn options_of_drafts_need_a_drafter() {
    type Change = fn(&mut Options);
    let changes: [(&str, Change); 3] = [
        ("lookup", |o| o.method = Some(MethodOptions::Ssd { lookup: Lookup::Suffix })),
        ("draft_tokens", |o| o.draft_tokens = DraftTokens::Fixed(3)),
        ("additional_drafters", |o| o.additional_drafters.extend("prompt-lookup".parse())),
    ];
    for (option, change) in changes {
        let message = plan(change).err().unwrap_or_default();
        let expected = format!("`{option}` has no effect without `draft_model` or `drafter`");
        assert!(message.starts_with(&expected), "{message}");
        // One option switches to the baseline, for which no option of drafts counts.
        let baseline = plan(|options| {
            change(options);
            options.method = Some(Method::Autoregressive.into());
        });
        assert_eq!(baseline.err(), None);
    }
}

/// Phrases do not count as draft tokens, so they do not lower the largest number of those.
#[test]
fn phrases_are_additional_to_the_draft_tokens() {
    let shape = |draft_tokens, tree| {
        let drafts = drafts(draft_tokens, tree, DrafterKind::Ouroboros)?;
        Ok::<_, String>((drafts.shape.length(), drafts.shape.depth()))
    };
    let automatic = shape(DraftTokens::Auto, "none");
    assert_eq!(automatic.map(|(length, depth)| depth - length), Ok(PHRASE_TOKENS));
    for (draft_tokens, length) in [
        (DraftTokens::Fixed(1), 1),
        (DraftTokens::Fixed(61), 61),
        (DraftTokens::Fixed(64), 64),
        (DraftTokens::Assisted, 64),
    ] {
        assert_eq!(shape(draft_tokens, "none"), Ok((length, length + PHRASE_TOKENS)));
    }
    let error = shape(DraftTokens::Fixed(65), "none").err().unwrap_or_default();
    assert!(error.contains("`draft_tokens` is 65") && error.contains("1 to 64"), "{error}");
    // The depth of a tree includes phrases.
    assert_eq!(shape(DraftTokens::Fixed(3), "top:4x6:12"), Ok((2, 6)));
}

#[test]
fn trees_that_grow_have_limits_and_a_fixed_tree_for_seeds() -> Result<(), String> {
    let auto = drafts(DraftTokens::Auto, "auto", DrafterKind::Model)?;
    assert_eq!(auto.trees, Some(TreeLimits { depth: 16, nodes: 64 }));
    assert_eq!((auto.shape.max_nodes(), auto.length), (8, DraftLength::Auto));
    let short = drafts(DraftTokens::Fixed(2), "auto", DrafterKind::Model)?;
    assert_eq!(short.trees, Some(TreeLimits { depth: 2, nodes: 64 }));
    assert!(short.shape.depth() <= 2 && short.length == DraftLength::Auto);
    assert_eq!(plan(|_| ())?.trees(), None);
    Ok(())
}

#[test]
fn values_are_parsed_and_errors_list_the_possible_ones() {
    let top = |depth, budget| Ok(Tree::Top { width: 4, depth, budget });
    assert_eq!("top:4x5".parse(), top(Some(5), None));
    assert_eq!("top:4x5:16".parse(), top(Some(5), Some(16)));
    assert_eq!("top:4:16".parse(), top(None, Some(16)));
    assert_eq!("sampled:3,2".parse(), Ok(Tree::Sampled { branching: vec![3, 2] }));
    assert_eq!("ranked:12".parse(), Ok(Tree::Ranked { nodes: 12 }));
    for text in
        ["none", "auto", "ranked:9", "top:4", "top:4x5", "top:4:9", "top:4x5:9", "sampled:3,2,1"]
    {
        assert_eq!(text.parse::<Tree>().map(|tree| tree.to_string()), Ok(text.to_owned()));
    }
    assert_eq!("7".parse(), Ok(DraftTokens::Fixed(7)));
    assert_eq!("assisted".parse(), Ok(DraftTokens::Assisted));
    let message = |result: Result<Method, UnknownValue>| {
        result.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(message("magic".parse()).contains("speculative"));
    for text in ["top:x", "top:4x5:", "top:4x", "top:4:2:1", "top:-1", "ranked:", "ranked"] {
        assert!(text.parse::<Tree>().is_err(), "{text}");
    }
    assert!("".parse::<DraftTokens>().is_err());
    assert!("medusa-2".parse::<DrafterKind>().is_err());
    let kinds = ["none", "model", "easyspec", "prompt-lookup", "lookahead", "medusa", "eagle"];
    for kind in kinds.into_iter().chain(["suffix", "parallel", "hydra", "ouroboros"]) {
        assert_eq!(kind.parse().map(|kind: DrafterKind| kind.to_string()), Ok(kind.to_owned()));
    }
}

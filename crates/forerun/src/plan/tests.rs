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
    let drafted = plan(|options| options.drafter = Some(DrafterKind::PromptLookup))?;
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
        options.method = Some(Method::Pearl);
    })?;
    assert_eq!(parallel.placement().to_string(), "drafter=cpu:0,target=cpu:1");
    let lookup = plan(|options| options.drafter = Some(DrafterKind::PromptLookup))?;
    assert_eq!(lookup.method(), Method::Speculative);
    assert_eq!(lookup.placement().devices().len(), 1);
    let easyspec = |options: &mut Options| {
        options.draft_model = Some("drafter".into());
        options.drafter = Some(DrafterKind::EasySpec);
        options.calibration = Some(CalibrationPolicy::Never);
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
        options.method = Some(Method::Autoregressive);
    })?;
    assert_eq!(plain.easyspec(), None);
    let several = plan(|options| {
        (options.method, options.draft_model) = (Some(Method::Dsi), Some("drafter".into()));
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
            (options.method, options.draft_model) = (Some(method), Some("drafter".into()));
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
        options.method = Some(Method::Autoregressive);
    })?;
    assert_eq!((baseline.drafter(), baseline.draft_model()), (DrafterKind::None, None));
    Ok(())
}

#[test]
fn drafters_of_auto_are_also_on_the_targets_worker() -> Result<(), String> {
    let workers = |change: fn(&mut Options)| {
        let plan = plan(|options| {
            (options.method, options.draft_model) = (Some(Method::Auto), Some("drafter".into()));
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
    assert_eq!(workers(|o| o.drafter = Some(DrafterKind::EasySpec))?, separate);
    assert_eq!(workers(|o| o.method = Some(Method::Pearl))?, separate);
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
    assert_eq!(method(|o| o.drafter = Some(DrafterKind::EasySpec))?, Method::Auto);
    // The models take turns, or have lengths that mean something else to each method.
    let shared = |o: &mut Options| o.placement = "drafter=cpu:0,target=cpu:0,shared".parse().ok();
    assert_eq!(method(shared)?, Method::Speculative);
    let fixed = |o: &mut Options| o.draft_tokens = DraftTokens::Fixed(4);
    assert_eq!(method(fixed)?, Method::Speculative);
    // What a checkpoint that is not on disk yet reads is not known.
    assert_eq!(method(|o| o.drafter = Some(DrafterKind::Parallel))?, Method::Speculative);
    let on_ranks = |o: &mut Options| o.placement = "drafter=rank:0,target=rank:1".parse().ok();
    assert_eq!(method(on_ranks)?, Method::Auto);
    Ok(())
}

#[test]
fn auto_is_speculative_decoding_where_nothing_else_is_supported() -> Result<(), String> {
    let only_speculative: [fn(&mut Options); 5] = [
        |o| o.tree = Tree::Auto,
        |o| o.lookup = Lookup::Suffix,
        |o| o.draft_tokens = DraftTokens::Assisted,
        |o| o.drafter = Some(DrafterKind::Eagle),
        |o| o.drafter = Some(DrafterKind::Ouroboros),
    ];
    for method in [None, Some(Method::Auto)] {
        for change in only_speculative {
            let plan = plan(|options| {
                options.draft_model = Some("drafter".into());
                options.placement = "drafter=cpu:0,target=cpu:1".parse().ok();
                options.method = method;
                change(options);
            })?;
            assert_eq!(plan.method(), Method::Speculative);
        }
    }
    let automatic = plan(|options| {
        options.draft_model = Some("drafter".into());
        (options.method, options.tree) = (Some(Method::Auto), Tree::Auto);
    })?;
    // Speculative decoding, so drafter and target share all cores.
    assert!(automatic.placement().is_shared());
    Ok(())
}

#[test]
fn conflicting_options_are_refused_with_a_way_out() {
    let refuse = |change: fn(&mut Options), word: &str| {
        let message = plan(change).err().unwrap_or_default();
        assert!(message.contains(word), "{word}: {message}");
    };
    refuse(|o| o.drafter = Some(DrafterKind::Model), "set `draft_model`");
    refuse(|o| o.drafter = Some(DrafterKind::EasySpec), "\"easyspec\" needs a checkpoint");
    refuse(|o| o.layers = Some(LayerStrategy::Parallel(2)), "`drafter = easyspec`");
    refuse(|o| o.calibration = Some(CalibrationPolicy::Never), "leave `calibration` out");
    refuse(
        |o| {
            o.draft_model = Some("x".into());
            o.layers = "0,1-2".parse().ok();
        },
        "`layer_groups`",
    );
    refuse(
        |o| {
            (o.drafter, o.draft_model) = (Some(DrafterKind::EasySpec), Some("x".into()));
            o.layers = Some(LayerStrategy::Parallel(0));
        },
        "`layer_parallel_size` is 0",
    );
    refuse(
        |o| {
            (o.drafter, o.draft_model) = (Some(DrafterKind::EasySpec), Some("x".into()));
            o.placement = "drafter=rank:0/rank:1,target=rank:2".parse().ok();
        },
        "the pipeline stages rank:0/rank:1",
    );
    refuse(|o| o.drafter = Some(DrafterKind::Medusa), "\"medusa\" needs a checkpoint");
    refuse(|o| o.method = Some(Method::Speculative), "needs a drafter");
    refuse(
        |o| {
            o.draft_model = Some("x".into());
            o.drafter = Some(DrafterKind::PromptLookup);
        },
        "does not use a model",
    );
    refuse(
        |o| {
            (o.drafter, o.method) = (Some(DrafterKind::PromptLookup), Some(Method::Pearl));
            o.draft_tokens = DraftTokens::Assisted;
        },
        "the method pearl has none",
    );
    refuse(
        |o| {
            o.draft_model = Some("x".into());
            o.additional_drafters =
                ["lookahead".parse().unwrap_or_else(|never| match never {})].to_vec();
        },
        "the drafter lookahead learns",
    );
    refuse(
        |o| {
            o.drafter = Some(DrafterKind::Lookahead);
            o.additional_drafters = vec![AdditionalDrafter::Tokens(DrafterKind::PromptLookup)];
        },
        "leave `additional_drafters` out",
    );
    refuse(
        |o| (o.drafter, o.method) = (Some(DrafterKind::Lookahead), Some(Method::Dsi)),
        "does not wait for",
    );
    refuse(
        |o| {
            (o.drafter, o.method) = (Some(DrafterKind::Ouroboros), Some(Method::Pearl));
            o.draft_model = Some("x".into());
        },
        "the drafter ouroboros learns",
    );
    // The kind of drafter is enough: the checkpoint may still have to be downloaded.
    refuse(
        |o| {
            (o.drafter, o.method) = (Some(DrafterKind::Medusa), Some(Method::Pearl));
            o.draft_model = Some("x".into());
        },
        "the drafter medusa reads hidden states",
    );
    refuse(
        |o| {
            (o.drafter, o.method) = (Some(DrafterKind::PromptLookup), Some(Method::Dsi));
            o.additional_drafters = "lookahead".parse().into_iter().collect();
        },
        "the drafter lookahead learns",
    );
    refuse(
        |o| {
            (o.draft_model, o.lookup) = (Some("x".into()), Lookup::Suffix);
            o.method = Some(Method::Pearl);
        },
        "whole drafts, and the method pearl has none",
    );
    refuse(
        |o| (o.drafter, o.lookup) = (Some(DrafterKind::Lookahead), Lookup::Suffix),
        "the drafter lookahead learns from all of its own",
    );
    refuse(|o| o.draft_tokens = DraftTokens::Fixed(0), "1 to 64");
    refuse(|o| o.draft_tokens = DraftTokens::Fixed(65), "65");
    refuse(|o| o.tree = "top:0".parse().unwrap_or_default(), "top:0");
    refuse(|o| o.tree = "top:4x5:0".parse().unwrap_or_default(), "top:4x5:0");
    refuse(|o| o.tree = "top:30x20".parse().unwrap_or_default(), "512 nodes");
    refuse(|o| o.tree = Tree::Sampled { branching: vec![9; 9] }, "512 nodes");
    refuse(|o| o.tree = Tree::Ranked { nodes: 0 }, "ranked:0");
    refuse(|o| o.tree = Tree::Ranked { nodes: 513 }, "512 nodes");
    refuse(
        |o| {
            (o.drafter, o.tree) = (Some(DrafterKind::Lookahead), Tree::Auto);
        },
        "lookahead, which decides the shape",
    );
    refuse(
        |o| {
            o.draft_model = Some("x".into());
            (o.draft_tokens, o.tree) = (DraftTokens::Assisted, Tree::Auto);
        },
        "or to the largest depth",
    );
    refuse(|o| o.placement = "target=cpu:7".parse().ok(), "core 7");
    refuse(
        |o| {
            (o.draft_model, o.method) = (Some("x".into()), Some(Method::Ssd));
            o.additional_drafters = vec![AdditionalDrafter::Tokens(DrafterKind::PromptLookup)];
        },
        "the method ssd has one drafter",
    );
    refuse(
        |o| {
            o.draft_model = Some("x".into());
            o.placement = "target=cpu:1".parse().ok();
        },
        "no drafter group",
    );
}

#[test]
fn options_without_effect_are_refused_with_the_option_that_they_need() {
    let refuse = |change: fn(&mut Options), option: &str, needed: &str| {
        let message = plan(change).err().unwrap_or_default();
        let expected = format!("`{option}` has no effect without {needed}");
        assert!(message.starts_with(&expected), "{message}");
        // One option switches to the baseline, for which no option of drafts counts.
        let baseline = plan(|options| {
            change(options);
            options.method = Some(Method::Autoregressive);
        });
        assert_eq!(baseline.err(), None);
    };
    let drafter = "`draft_model` or `drafter`";
    refuse(|o| o.tree = "top:2x2".parse().unwrap_or_default(), "tree", drafter);
    refuse(|o| o.draft_tokens = DraftTokens::Fixed(3), "draft_tokens", drafter);
    let additional = |o: &mut Options| {
        o.additional_drafters = "prompt-lookup".parse().into_iter().collect();
    };
    refuse(additional, "additional_drafters", drafter);
    refuse(|o| o.lookup = Lookup::Suffix, "lookup", drafter);
    let pearl = |o: &mut Options| {
        o.drafter = Some(DrafterKind::PromptLookup);
        o.pearl = "paper".parse().unwrap_or_default();
    };
    refuse(pearl, "pearl", "`method = pearl`");
    let calibration = |o: &mut Options| o.calibration = Some(CalibrationPolicy::Never);
    refuse(calibration, "calibration", "`drafter = easyspec`");
}

/// Phrases do not count as draft tokens, so they do not lower the largest number of those.
#[test]
fn phrases_are_additional_to_the_draft_tokens() {
    let shape = |draft_tokens, tree: &str| {
        let plan = plan(|options| {
            options.draft_model = Some("drafter".into());
            options.drafter = Some(DrafterKind::Ouroboros);
            (options.draft_tokens, options.tree) = (draft_tokens, tree.parse().unwrap_or_default());
        })?;
        Ok::<_, String>((plan.shape().length(), plan.shape().depth()))
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
    let grown = |draft_tokens| {
        plan(|options| {
            options.draft_model = Some("drafter".into());
            (options.draft_tokens, options.tree) = (draft_tokens, Tree::Auto);
        })
    };
    let auto = grown(DraftTokens::Auto)?;
    assert_eq!(auto.trees(), Some(TreeLimits { depth: 16, nodes: 64 }));
    assert_eq!((auto.shape().max_nodes(), auto.length()), (8, DraftLength::Auto));
    let short = grown(DraftTokens::Fixed(2))?;
    assert_eq!(short.trees(), Some(TreeLimits { depth: 2, nodes: 64 }));
    assert!(short.shape().depth() <= 2 && short.length() == DraftLength::Auto);
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

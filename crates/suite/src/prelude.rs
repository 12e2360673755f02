//! What nearly every test needs.

pub(crate) use crate::comparison::{assert_same, assert_same_bits, bits, run_all};
pub(crate) use crate::examples::{blocks_config, mixed_file, random_checkpoint, text, tree_of};
pub(crate) use crate::kinds::{Kind, any_kind};
pub(crate) use crate::{
    Device, LONGEST_TEXT, Models, Run, TargetPart, all_layers, check, examples,
};
pub(crate) use forerun_cache::{Keep, PAGE_ROWS};
pub(crate) use forerun_core::{
    BestTokens, FeatureRows, Features, RowUse, SequenceId, TokenId, TokenTree,
};
pub(crate) use forerun_formats::checkpoint::random::{
    RandomDtype, RandomTensors, example_config, scale_tensor, write_random_checkpoint,
    write_random_checkpoint_with_mtp,
};
pub(crate) use forerun_formats::checkpoint::random_speculator::{
    Eagle3Options, RandomSpeculator, SpeculatorLayout,
};
pub(crate) use forerun_formats::{
    Architecture, BlockType, Checkpoint, Config, Family, FeatureNorm, FeatureSource, Mix,
    ModelTypes, Speculator, SpeculatorArchitecture, SpeculatorKind, TensorSource, WeightType,
};
pub(crate) use forerun_lm::fake::{reduced_to, row_prefix};
pub(crate) use forerun_lm::{
    BatchEntry, CachePart, EXCLUDED_LOGIT, ForwardOutput, ForwardRequest, LanguageModel,
    LayerGroups, LayerOrder, LayeredModel, ModelError, Progress,
};
pub(crate) use forerun_model::{
    BlockModel, CachedTransformer, EagleModel, Forward, HeadsModel, SequenceRunner, TargetKeysModel,
};
pub(crate) use forerun_reference::{ReferenceDevice, ReferenceHeads, ReferenceModel};
pub(crate) use proptest::prelude::*;
pub(crate) use proptest::test_runner::TestCaseResult;
pub(crate) use std::path::Path;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

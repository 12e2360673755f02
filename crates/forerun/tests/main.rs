//! The engine. All tests are one program, because each program takes seconds to link.

#![expect(clippy::unwrap_used, reason = "tests")]

mod adapters;
mod assistant;
mod cache_dir;
mod cache_range;
mod caches;
mod chat;
mod common;
mod cuda;
mod dflash;
mod dflash2;
mod draft_goldens;
mod dspark;
mod eagle3;
mod embedding_example;
mod embeddings;
mod ends;
mod families;
mod gguf_tokenizers;
mod goldens;
mod gpus;
mod grammars;
mod llama_logits;
mod loader;
mod long_prompts;
mod lossless_matrix;
mod mixes;
mod mtp;
mod paced;
mod pard2;
mod peagle;
mod public_names;
mod quantized;
mod remote_workers;
mod scoring;
mod shared_devices;
mod smollm2;
mod statistics_of_samples;
mod stream;
mod tokenizers;

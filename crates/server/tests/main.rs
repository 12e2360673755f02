//! The server. All tests are one program, because each program takes seconds to link.

mod chat_apis;
mod clients;
mod common;
mod embeddings;
mod fields;
mod http;
mod infill;
mod load_equality;
mod long_conversations;
mod models;
mod ollama;
mod page;
mod schemas;
mod tokens;

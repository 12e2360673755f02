//! Dynamo's own tests of a worker.
#![expect(clippy::unwrap_used, reason = "tests")]

use clap::Parser;
use dynamo_backend_common::testing::run_conformance;
use forerun_cli::EngineArguments;
use forerun_dynamo::{ForerunWorker, WorkerOptions};
use std::time::Duration;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    engine: EngineArguments,
}

fn worker(options: &str) -> ForerunWorker {
    let mut engine = Line::parse_from(options.split(' ')).engine;
    let plan = engine.plan().unwrap();
    ForerunWorker::new(WorkerOptions {
        engine,
        plan,
        model_name: "demo".into(),
        parallel: 4,
        drain: Duration::from_secs(1),
        refuse_penalties: false,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_passes_dynamos_conformance_kit() {
    for options in ["x --threads 1", "x --method autoregressive --threads 1"] {
        run_conformance(|| worker(options)).await.unwrap();
    }
}

//! `forerun bench serve`: servers under load.

use crate::arguments::ServeBenchArguments;
use crate::note;
use crate::progress::{Task, Unit};
use anyhow::bail;
use forerun_bench::load::{self, Arrivals, Endpoint, Limits, Load, LoadReport};
use std::io::Write;
use std::process::ExitCode;

pub(crate) fn run(arguments: &ServeBenchArguments) -> anyhow::Result<ExitCode> {
    let endpoints = endpoints(arguments);
    let prompts = arguments.suites.read()?;
    let prompts: Vec<String> =
        prompts.into_iter().filter_map(|p| p.turns.into_iter().next()).collect();
    if prompts.is_empty() {
        bail!("the suites have no prompts");
    }
    let all_arrivals = all_arrivals(arguments);
    let rounds = all_arrivals.len() * arguments.repeats * endpoints.len();
    let mut task = Task::new("measuring", Unit::Pieces("loads"), rounds as u64);
    let mut reports = Vec::new();
    for arrivals in all_arrivals {
        let requests = match arrivals {
            Arrivals::Clients { clients } => clients * arguments.requests.unwrap_or(4),
            Arrivals::Rate { .. } => arguments.requests.unwrap_or(64),
        };
        let load = Load {
            arrivals,
            requests,
            limits: Limits { ttft_ms: arguments.ttft, tpot_ms: arguments.tpot },
            prompts: prompts.clone(),
            max_tokens: arguments.max_tokens,
            temperature: arguments.temperature,
        };
        for _ in 0..arguments.repeats {
            for endpoint in &endpoints {
                task.message(format!("{}, {}", endpoint.name, words(arrivals)));
                reports.push(load::run(endpoint, &load));
                task.update(reports.len() as u64);
            }
        }
    }
    drop(task);
    let failed = reports.iter().flat_map(|report| &report.failures).next();
    if let Some(failure) = failed {
        note(format_args!("requests failed; one of the errors is: {failure}"));
    }
    let mut out = std::io::stdout().lock();
    match arguments.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&reports)?)?,
        false => table(&mut out, &medians(&reports))?,
    }
    Ok(if failed.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn all_arrivals(arguments: &ServeBenchArguments) -> Vec<Arrivals> {
    let burst = arguments.burst;
    match arguments.rate.is_empty() {
        true => arguments.clients.iter().map(|&clients| Arrivals::Clients { clients }).collect(),
        false => arguments.rate.iter().map(|&rate| Arrivals::Rate { rate, burst }).collect(),
    }
}

fn words(arrivals: Arrivals) -> String {
    match arrivals {
        Arrivals::Clients { clients } => format!("{clients} clients"),
        Arrivals::Rate { rate, burst: 1 } => format!("{rate}/s"),
        Arrivals::Rate { rate, burst } => format!("{rate}/s, {burst} at a time"),
    }
}

fn endpoints(arguments: &ServeBenchArguments) -> Vec<Endpoint> {
    let endpoint = |server: &String| {
        let (name, url) = match server.split_once('=') {
            Some((name, url)) if !name.contains(':') => (name.to_owned(), url.to_owned()),
            _ => (server.clone(), server.clone()),
        };
        Endpoint { name, url, api_key: arguments.api_key.clone() }
    };
    arguments.server.iter().map(endpoint).collect()
}

/// Returns for each server and load the report with the median speed.
fn medians(reports: &[LoadReport]) -> Vec<&LoadReport> {
    let mut groups: Vec<Vec<&LoadReport>> = Vec::new();
    for report in reports {
        let alike = |other: &&LoadReport| {
            (other.arrivals, &other.server) == (report.arrivals, &report.server)
        };
        match groups.iter_mut().find(|group| group.first().is_some_and(alike)) {
            Some(group) => group.push(report),
            None => groups.push(vec![report]),
        }
    }
    groups.into_iter().map(median).collect()
}

/// Returns the report with the median speed.
fn median(mut group: Vec<&LoadReport>) -> &LoadReport {
    group.sort_by(|a, b| a.tokens_per_second.total_cmp(&b.tokens_per_second));
    group.swap_remove(group.len() / 2)
}

fn table(out: &mut impl Write, reports: &[&LoadReport]) -> std::io::Result<()> {
    writeln!(
        out,
        "| load | server | answers | tokens/s | goodput, answers/s | first token ms, p50 / p99 \
         | between texts ms, p50 / p99 | per token ms, p50 / p99 | slowest/fastest |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|"
    )?;
    let pair = |[p50, p99]: [f64; 2]| format!("{p50:.1} / {p99:.1}");
    for report in reports {
        writeln!(
            out,
            "| {} | {} | {} | {:.1} | {:.2} | {} | {} | {} | {:.2} |",
            words(report.arrivals),
            report.server,
            report.answers,
            report.tokens_per_second,
            report.goodput,
            pair(report.first_token_ms),
            pair(report.inter_token_ms),
            pair(report.time_per_token_ms),
            report.slowest_to_fastest,
        )?;
    }
    Ok(())
}

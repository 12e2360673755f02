//! `forerun bench serve`: clients that put load on servers.

use crate::arguments::ServeBenchArguments;
use crate::note;
use crate::progress::{Task, Unit};
use anyhow::bail;
use forerun_bench::load::{self, Endpoint, Load, LoadReport};
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
    let rounds = arguments.clients.len() * arguments.repeats * endpoints.len();
    let mut task = Task::new("measuring", Unit::Pieces("loads"), rounds as u64);
    let mut reports = Vec::new();
    for &clients in &arguments.clients {
        for _ in 0..arguments.repeats {
            for endpoint in &endpoints {
                task.message(format!("{}, {clients} clients", endpoint.name));
                let load = Load {
                    clients,
                    requests: clients * arguments.requests,
                    prompts: prompts.clone(),
                    max_tokens: arguments.max_tokens,
                    temperature: arguments.temperature,
                };
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

/// Returns for each server and number of clients the report with the median speed.
fn medians(reports: &[LoadReport]) -> Vec<&LoadReport> {
    let mut groups: Vec<Vec<&LoadReport>> = Vec::new();
    for report in reports {
        let alike = |other: &&LoadReport| {
            (other.clients, &other.server) == (report.clients, &report.server)
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
        "| clients | server | answers | tokens/s | first token ms, p50 / p99 | between texts ms, p50 / p99 \
         | per token ms, p50 / p99 | slowest/fastest |\n|---:|---|---:|---:|---:|---:|---:|---:|"
    )?;
    let pair = |[p50, p99]: [f64; 2]| format!("{p50:.1} / {p99:.1}");
    for report in reports {
        writeln!(
            out,
            "| {} | {} | {} | {:.1} | {} | {} | {} | {:.2} |",
            report.clients,
            report.server,
            report.answers,
            report.tokens_per_second,
            pair(report.first_token_ms),
            pair(report.inter_token_ms),
            pair(report.time_per_token_ms),
            report.slowest_to_fastest,
        )?;
    }
    Ok(())
}

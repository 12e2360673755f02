//! Hardware profiles as text.

use super::{HardwareProfile, MethodTiming};
use std::fmt::{self, Write};

impl HardwareProfile {
    /// Returns the text of the profile. It starts with `comment`, which should say where the
    /// numbers come from.
    #[must_use]
    pub fn to_toml(&self, comment: &str) -> String {
        let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "source = \"{}\"\nhardware = {}", self.source, quoted(&self.hardware))?;
        if !self.model.is_empty() {
            writeln!(text, "model = {}", quoted(&self.model))?;
        }
        for (name, value) in [("dtype", &self.dtype), ("kv-type", &self.kv_type)] {
            if let Some(value) = value {
                writeln!(text, "{name} = {}", quoted(value))?;
            }
        }
        if let Some(threads) = self.threads {
            writeln!(text, "threads = {threads}")?;
        }
        if self.pin {
            writeln!(text, "pin = true")?;
        }
        writeln!(text, "answer-tokens = {}", self.answer_tokens)?;
        for drafter in &self.drafters {
            writeln!(text, "\n[[drafter]]\nname = {}", quoted(&drafter.name))?;
            if let Some(model) = &drafter.model {
                writeln!(text, "model = {}", quoted(model))?;
            }
            if let Some(acceptance) = drafter.acceptance {
                writeln!(text, "acceptance = {acceptance}")?;
            }
            if !drafter.agreement.is_empty() {
                let lines = drafter.agreement.iter().map(|line| format!("    \"{line}\",\n"));
                writeln!(text, "agreement = [\n{}]", lines.collect::<String>())?;
            }
            if !drafter.drafts.is_empty() {
                let pair = |&(length, accepted): &(usize, usize)| format!("[{length}, {accepted}]");
                let line = |drafts: &Vec<_>| drafts.iter().map(pair).collect::<Vec<_>>().join(", ");
                let lines =
                    drafter.drafts.iter().map(|drafts| format!("    [{}],\n", line(drafts)));
                writeln!(text, "drafts = [\n{}]", lines.collect::<String>())?;
            }
            if !drafter.ranks.is_empty() {
                let lines = drafter.ranks.iter().map(|ranks| format!("    {ranks:?},\n"));
                writeln!(text, "ranks = [\n{}]", lines.collect::<String>())?;
            }
            if let Some(positions) = drafter.positions {
                writeln!(text, "positions = {positions}")?;
            }
            for (name, value) in
                [("one-forward", drafter.one_forward), ("reads-features", drafter.reads_features)]
            {
                if value {
                    writeln!(text, "{name} = true")?;
                }
            }
        }
        self.timings.iter().try_for_each(|timing| timing.write(text))
    }
}

impl MethodTiming {
    fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "\n[[timing]]\nmethod = {}", quoted(&self.method))?;
        if let Some(drafter) = &self.drafter {
            writeln!(text, "drafter = {}", quoted(drafter))?;
        }
        if let Some(placement) = &self.placement {
            writeln!(text, "placement = {}", quoted(placement))?;
        }
        if let Some(cores) = &self.cores {
            writeln!(text, "cores = {}", quoted(cores))?;
        }
        if self.tree {
            writeln!(text, "tree = true")?;
        }
        writeln!(text, "replicas = {}\nlink-ms = {:.6}", self.replicas, self.link_ms)?;
        let scale = |(length, scale): &(usize, f64)| format!("[{length}, {scale:.6}]");
        let scales: Vec<String> = self.scale.iter().map(scale).collect();
        writeln!(text, "scale = [{}]", scales.join(", "))?;
        if let Some(scale) = self.auto_scale {
            writeln!(text, "auto-scale = {scale:.6}")?;
        }
        self.target.write("timing.target", text)?;
        match &self.drafter_passes {
            Some(passes) => passes.write("timing.draft", text),
            None => Ok(()),
        }
    }
}

/// Returns a TOML string. Control characters, which no name has, are left out.
fn quoted(text: &str) -> String {
    let text: String = text.chars().filter(|character| !character.is_control()).collect();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

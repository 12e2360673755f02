//! Who takes part: our configurations, and what peers are asked for.

use crate::layer_point::LayerPoint;
use crate::peers::{PeerSpec, PeerTask};
use crate::provenance::quoted;
use crate::{BenchError, Configuration};
use forerun::{DrafterKind, WeightType};

/// Somebody who answers.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// A few words; no two have the same.
    pub name: String,
    /// The options of `forerun generate` that mean the same; a peer's command.
    pub flags: String,
    /// Cores that it uses in total.
    pub cores: usize,
    /// The temperature of its answers.
    pub temperature: f32,
    /// The place in the list of our own plain decoding that it is compared with.
    pub baseline: usize,
    /// Who drafts.
    pub drafter: DrafterKind,
    /// Where it stands among those that compute layers in parallel, if it does.
    pub point: Option<LayerPoint>,
    /// What is asked of a peer; `None` is one of ours, at the same place in the list of configurations.
    pub peer: Option<PeerTask>,
}

impl Contestant {
    /// One of ours.
    #[must_use]
    pub fn of(configuration: &Configuration) -> Self {
        let Configuration { name, flags, cores, baseline, temperature, plan, point } =
            configuration;
        let (name, flags, drafter) = (name.clone(), flags.clone(), plan.drafter());
        let (cores, baseline, temperature) = (*cores, *baseline, *temperature);
        let point = point.clone();
        Self { name, flags, cores, temperature, baseline, drafter, point, peer: None }
    }

    /// Whether it is a peer.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        self.peer.is_some()
    }
}

/// Our configurations, then everything that peers are asked for, each beside our plain decoding of its
/// weight type.
///
/// # Errors
/// If a peer has no such decoding to be compared with, or is asked for what none can do.
pub fn contestants(
    configurations: &[Configuration],
    peers: &[PeerSpec],
) -> Result<Vec<Contestant>, BenchError> {
    let mut all: Vec<Contestant> = configurations.iter().map(Contestant::of).collect();
    for (peer, spec) in peers.iter().enumerate() {
        let refused = |reason: String| BenchError::Peer { name: spec.name.clone(), reason };
        // They answer greedily.
        let is_its = |own: &Configuration| {
            own.plan.weight_type() == spec.weight_type && own.temperature == 0.0
        };
        let baseline = configurations.iter().position(is_its).ok_or_else(|| {
            let weights = spec.weight_type.map_or("auto".into(), |own: WeightType| own.to_string());
            refused(format!("nothing of ours has its dtype, {weights}: name the same in a sweep"))
        })?;
        for &drafter in &spec.drafters {
            let lengths = match drafter {
                DrafterKind::None => vec![0],
                DrafterKind::Model | DrafterKind::PromptLookup => spec.draft_tokens.clone(),
                _ => return Err(refused(format!("only forerun has the drafter {drafter}"))),
            };
            if lengths.is_empty() {
                return Err(refused("say with draft-tokens how many it drafts in a row".into()));
            }
            for draft_tokens in lengths {
                let method = match drafter {
                    DrafterKind::None => "autoregressive".to_owned(),
                    _ => format!("speculative, {drafter}, {draft_tokens}"),
                };
                let weights = configurations[baseline].name.strip_prefix("autoregressive");
                let name = format!("{}: {method}{}", spec.name, weights.unwrap_or_default());
                let command: Vec<String> = spec.command.iter().map(|part| quoted(part)).collect();
                let (flags, cores) = (command.join(" "), configurations[baseline].cores);
                let peer = Some(PeerTask { peer, drafter, draft_tokens });
                let (temperature, point) = (0.0, None);
                all.push(Contestant {
                    name,
                    flags,
                    cores,
                    temperature,
                    baseline,
                    drafter,
                    point,
                    peer,
                });
            }
        }
    }
    for (index, own) in all.iter().enumerate() {
        if all[..index].iter().any(|other| other.name == own.name) {
            let reason = format!("it is there twice as {:?}: give each its own name", own.name);
            return Err(BenchError::Peer { name: own.name.clone(), reason });
        }
    }
    Ok(all)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Models, Sweep, configurations};

    fn ours() -> Vec<Configuration> {
        let models = Models { target: "t".into(), drafter: Some("d".into()), embedded: false };
        let weight_types = vec![Some(WeightType::F32), Some(WeightType::Int8)];
        configurations(&models, &[Sweep { weight_types, ..Sweep::default() }], false).unwrap()
    }

    fn peer(weight_type: WeightType) -> PeerSpec {
        PeerSpec {
            name: "peer".into(),
            command: vec!["run".into(), "a b".into()],
            weight_type: Some(weight_type),
            drafters: vec![DrafterKind::None, DrafterKind::Model],
            draft_tokens: vec![2, 4],
        }
    }

    #[test]
    fn peers_stand_beside_plain_decoding_of_their_type() {
        let ours = ours();
        let all = contestants(&ours, &[peer(WeightType::Int8)]).unwrap();
        let names: Vec<&str> = all[ours.len()..].iter().map(|own| own.name.as_str()).collect();
        let expected = [
            "peer: autoregressive, int8",
            "peer: speculative, model, 2, int8",
            "peer: speculative, model, 4, int8",
        ];
        assert_eq!(names, expected);
        assert!(all[ours.len()..].iter().all(|own| own.is_peer() && own.baseline == 2));
        assert_eq!(all[ours.len()].flags, "run 'a b'");
        assert_eq!((all[1].drafter, all[1].is_peer()), (DrafterKind::Model, false));
    }

    #[test]
    fn what_no_peer_can_do_is_refused() {
        let refused = |change: fn(&mut PeerSpec)| {
            let mut peer = peer(WeightType::F32);
            change(&mut peer);
            contestants(&ours(), &[peer]).unwrap_err().to_string()
        };
        assert!(refused(|own| own.weight_type = Some(WeightType::Bf16)).contains("dtype, bf16"));
        assert!(refused(|own| own.draft_tokens.clear()).contains("draft-tokens"));
        assert!(refused(|own| own.drafters = vec![DrafterKind::EasySpec]).contains("easyspec"));
        let twice = [peer(WeightType::F32), peer(WeightType::F32)];
        assert!(contestants(&ours(), &twice).unwrap_err().to_string().contains("twice"));
    }
}

//! The participants of a comparison: our configurations, and the tasks of peers.

use crate::layer_point::LayerPoint;
use crate::peers::{PeerSpec, PeerTask};
use crate::provenance::quoted;
use crate::{BenchError, Configuration};
use forerun::{DrafterKind, WeightTypes};

/// The drafters that the protocol of peers has.
const PEER_DRAFTERS: [DrafterKind; 3] =
    [DrafterKind::None, DrafterKind::Model, DrafterKind::PromptLookup];

/// A participant: one of our configurations, or a peer with one task.
#[derive(Clone, Debug)]
pub struct Participant {
    /// A short, unique description.
    pub name: String,
    /// The equivalent flags of `forerun generate`; for a peer, its command.
    pub flags: String,
    /// The total number of cores that it uses.
    pub cores: usize,
    /// The sampling temperature.
    pub temperature: f32,
    /// The index of its baseline, our own plain decoding, in the list of participants.
    pub baseline: usize,
    /// The kind of its drafter.
    pub drafter: DrafterKind,
    /// The point in EasySpec's figure 4, for layer-parallel drafters.
    pub point: Option<LayerPoint>,
    /// The name of the pass times, if its devices are paced.
    pub paced: Option<String>,
    /// The task of a peer. `None` for our configurations, which have the same index as in the list
    /// of configurations.
    pub peer: Option<PeerTask>,
}

impl Participant {
    /// Returns the participant of one of our configurations.
    #[must_use]
    pub fn of(configuration: &Configuration) -> Self {
        let Configuration { name, flags, cores, baseline, temperature, plan, point, .. } =
            configuration;
        let (name, flags, drafter) = (name.clone(), flags.clone(), plan.drafter());
        let (cores, baseline, temperature) = (*cores, *baseline, *temperature);
        let (point, pace) = (point.clone(), plan.placement().pace());
        let paced = pace.map(|pace| pace.name.clone());
        Self { name, flags, cores, temperature, baseline, drafter, point, paced, peer: None }
    }

    /// Returns whether this is a peer.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        self.peer.is_some()
    }
}

/// Returns all participants: our configurations, followed by every task of every peer. The baseline
/// of a peer is our greedy plain decoding with the same weight type.
///
/// # Errors
/// If a peer has no baseline, has a drafter that peers do not support, has no draft length, or does
/// not have a unique name.
pub fn participants(
    configurations: &[Configuration],
    peers: &[PeerSpec],
) -> Result<Vec<Participant>, BenchError> {
    let mut all: Vec<Participant> = configurations.iter().map(Participant::of).collect();
    for (peer, spec) in peers.iter().enumerate() {
        let invalid = |reason: String| BenchError::Peer { name: spec.name.clone(), reason };
        // Peers decode greedily.
        let is_baseline = |configuration: &Configuration| {
            configuration.plan.weight_type() == spec.weight_type
                && configuration.temperature == 0.0
                && configuration.plan.placement().pace().is_none()
        };
        let baseline = configurations.iter().position(is_baseline).ok_or_else(|| {
            let weights =
                spec.weight_type.map_or("auto".into(), |weights: WeightTypes| weights.to_string());
            invalid(format!(
                "no configuration of forerun without paced devices has its dtype, {weights}, at temperature \
                 0: add this dtype to a sweep"
            ))
        })?;
        for &drafter in &spec.drafters {
            if !PEER_DRAFTERS.contains(&drafter) {
                return Err(invalid(format!(
                    "peers do not support the drafter {drafter}: use none, model or prompt-lookup"
                )));
            }
            let drafts = drafter != DrafterKind::None;
            let lengths = if drafts { spec.draft_tokens.clone() } else { vec![0] };
            if lengths.is_empty() {
                return Err(invalid("set draft-tokens, its draft length".into()));
            }
            for draft_tokens in lengths {
                let method = match drafts {
                    false => "autoregressive".to_owned(),
                    true => format!("speculative, {drafter}, {draft_tokens}"),
                };
                let weights = configurations[baseline].name.strip_prefix("autoregressive");
                let name = format!("{}: {method}{}", spec.name, weights.unwrap_or_default());
                let command: Vec<String> = spec.command.iter().map(|part| quoted(part)).collect();
                let (flags, cores) = (command.join(" "), configurations[baseline].cores);
                let peer = Some(PeerTask { peer, drafter, draft_tokens });
                let (temperature, point, paced) = (0.0, None, None);
                all.push(Participant {
                    name,
                    flags,
                    cores,
                    temperature,
                    baseline,
                    drafter,
                    point,
                    paced,
                    peer,
                });
            }
        }
    }
    for (index, participant) in all.iter().enumerate() {
        let name = &participant.name;
        if all[..index].iter().any(|other| other.name == *name) {
            let reason = format!("{name:?} occurs twice: give each peer its own name");
            return Err(BenchError::Peer { name: name.clone(), reason });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Models, Sweep, configurations};
    use forerun::WeightType;

    fn ours() -> Vec<Configuration> {
        let models = Models { target: "t".into(), drafter: Some("d".into()), embedded: false };
        let weight_types = vec![Some(WeightType::F32.into()), Some(WeightType::INT8.into())];
        configurations(&models, &[Sweep { weight_types, ..Sweep::default() }], false).unwrap()
    }

    fn peer(weight_type: WeightType) -> PeerSpec {
        PeerSpec {
            name: "peer".into(),
            command: vec!["run".into(), "a b".into()],
            weight_type: Some(weight_type.into()),
            drafters: vec![DrafterKind::None, DrafterKind::Model],
            draft_tokens: vec![2, 4],
        }
    }

    #[test]
    fn peers_are_compared_with_plain_decoding_of_their_weight_type() {
        let ours = ours();
        let all = participants(&ours, &[peer(WeightType::INT8)]).unwrap();
        let peers = &all[ours.len()..];
        let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
        let expected = [
            "peer: autoregressive, int8",
            "peer: speculative, model, 2, int8",
            "peer: speculative, model, 4, int8",
        ];
        assert_eq!(names, expected);
        assert!(peers.iter().all(|peer| peer.is_peer() && peer.baseline == 2));
        assert_eq!(peers[0].flags, "run 'a b'");
        assert_eq!((all[1].drafter, all[1].is_peer()), (DrafterKind::Model, false));
    }

    #[test]
    fn invalid_peers_are_rejected_with_the_reason() {
        let error = |change: fn(&mut PeerSpec)| {
            let mut peer = peer(WeightType::F32);
            change(&mut peer);
            participants(&ours(), &[peer]).unwrap_err().to_string()
        };
        assert!(
            error(|peer| peer.weight_type = Some(WeightType::Bf16.into())).contains("dtype, bf16")
        );
        assert!(error(|peer| peer.draft_tokens.clear()).contains("draft-tokens"));
        assert!(error(|peer| peer.drafters = vec![DrafterKind::EasySpec]).contains("easyspec"));
        let twice = [peer(WeightType::F32), peer(WeightType::F32)];
        assert!(participants(&ours(), &twice).unwrap_err().to_string().contains("twice"));
    }
}

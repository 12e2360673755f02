//! The workers of a plan, as data.

use crate::model_source::ModelSource;
use crate::plan::{AdditionalDrafter, Method, Plan};
use crate::registry::DrafterKind;
use forerun_core::Role;
use forerun_runtime::DeviceGroup;
use serde::{Deserialize, Serialize};

/// A worker: the device that it runs on, and the models that it runs.
///
/// It is data, so that a worker can be started elsewhere. Another process that makes the same plan
/// has the same workers, in the same order.
///
/// ```
/// use forerun::{DrafterKind, Method, Options, Plan};
/// use forerun::runtime::WorkerDevice;
///
/// let options = Options {
///     model: "models/target".into(),
///     method: Some(Method::Pearl.into()),
///     drafter: Some(DrafterKind::PromptLookup.into()),
///     placement: Some("target=cpu:0".parse()?),
///     ..Options::default()
/// };
/// let workers = Plan::new(options)?.workers();
/// let names: Vec<&str> = workers.iter().map(|worker| &*worker.name).collect();
/// assert_eq!(names, ["drafter", "target cpu:0"]);
/// assert_eq!(workers[0].device, WorkerDevice::Thread);
/// assert_eq!(workers[1].models[0].checkpoint.as_deref(), Some("models/target"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDescription {
    /// The worker's name, which is also its lane in the trace, such as `target cpu:1`.
    pub name: String,
    /// The device.
    pub device: WorkerDevice,
    /// Whether the device's threads stay on their cores. Otherwise, a group is a number of threads.
    pub pinned: bool,
    /// The models, at least one.
    pub models: Vec<WorkerModel>,
}

/// The device of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerDevice {
    /// A thread of its own. Enough for drafters without a model.
    Thread,
    /// A group of cores that no other worker uses.
    Own(DeviceGroup),
    /// Several groups of cores, which the worker uses one after another, in turn with other
    /// workers.
    InTurn(Vec<DeviceGroup>),
}

/// A model of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerModel {
    /// The role by which decoders address it.
    pub role: Role,
    /// The path or hub id of its checkpoint; `None` for a drafter that needs no model.
    pub checkpoint: Option<String>,
}

impl WorkerDescription {
    /// Returns the roles by which decoders address the worker.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        self.models.iter().map(|model| model.role).collect()
    }
}

impl Plan {
    /// Returns the plan's workers: one for each device group, one for each role that moves between
    /// several groups, and one for each drafter without a model that does not share the target's.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerDescription> {
        let in_turn = self.placement().multi_device_roles();
        let own_workers = self.drafters_on_tokens().into_iter().filter(|&(index, _)| {
            // A drafter without a model needs no device, so the first one runs on the target's
            // worker unless both run at the same time.
            index > 0 || self.method().is_parallel()
        });
        let own_workers = own_workers.map(|(index, _)| WorkerDescription {
            name: "drafter".into(),
            device: WorkerDevice::Thread,
            pinned: false,
            models: vec![WorkerModel { role: Role::Drafter(index), checkpoint: None }],
        });
        let fixed = self.placement().devices().into_iter().filter_map(|(group, mut roles)| {
            roles.retain(|role| in_turn.iter().all(|(own, _)| own != role));
            self.worker(&self.device_name(&group, &roles), &roles, WorkerDevice::Own(group.clone()))
        });
        let moving = in_turn.iter().filter_map(|(role, groups)| {
            let device = WorkerDevice::InTurn(groups.as_slice().to_vec());
            self.worker(&groups.to_string(), &[*role], device)
        });
        own_workers.chain(fixed).chain(moving).collect()
    }

    /// Returns the name of a device. A paced one says so, and several on the same cores have numbers.
    fn device_name(&self, group: &DeviceGroup, roles: &[Role]) -> String {
        if self.placement().pace().is_none() {
            return group.to_string();
        }
        let number = match roles {
            [Role::Target(index)] if self.placement().replicas() > 1 => format!(" #{index}"),
            [Role::Drafter(index)] if self.n_drafters() > 1 => format!(" #{index}"),
            _ => String::new(),
        };
        format!("{group}{number}, paced")
    }

    /// Returns the worker of a device with these roles of the placement, if it has a model.
    fn worker(
        &self,
        groups: &str,
        roles: &[Role],
        device: WorkerDevice,
    ) -> Option<WorkerDescription> {
        let targets = roles.iter().filter(|role| role.target().is_some());
        let targets: Vec<WorkerModel> =
            targets.map(|&role| self.worker_model(role, Some(self.model()))).collect();
        // The placement's drafter groups belong to the drafters with models, in their order.
        let drafters = self.drafters_with_models().into_iter().zip(0..);
        let drafters = drafters.filter(|(_, group)| roles.contains(&Role::Drafter(*group)));
        let drafters = drafters
            .map(|((index, model), _)| self.worker_model(Role::Drafter(index), Some(model)));
        let shares_worker = !self.method().is_parallel() && roles.contains(&Role::Target(0));
        let on_tokens = self.drafters_on_tokens().into_iter();
        let on_tokens = on_tokens.filter(|(index, _)| *index == 0 && shares_worker);
        let on_tokens = on_tokens.map(|_| self.worker_model(Role::Drafter(0), None));
        let repeated = match roles.contains(&Role::Target(0)) && self.repeats_drafters() {
            true => self.repeated_drafters(),
            false => Vec::new(),
        };
        let drafters: Vec<WorkerModel> = drafters.chain(on_tokens).chain(repeated).collect();
        let name = match (targets.is_empty(), drafters.is_empty()) {
            (true, true) => return None,
            (true, false) => format!("drafter {groups}"),
            (false, true) => format!("target {groups}"),
            (false, false) => format!("target and drafter {groups}"),
        };
        let (pinned, models) = (self.is_pinned(), [targets, drafters].concat());
        Some(WorkerDescription { name, device, pinned, models })
    }

    /// Returns whether the drafters are also on the target's worker. [`Method::Auto`] has them
    /// draft there in rounds in which the target waits for the draft: all cores compute the draft,
    /// and nothing is handed over between workers. This needs workers that lend each other their
    /// cores.
    #[must_use]
    pub(crate) fn repeats_drafters(&self) -> bool {
        let placement = self.placement();
        // EasySpec's layers would be divided among other cores there.
        self.method() == Method::Auto
            && self.easyspec().is_none()
            && !self.is_pinned()
            && !placement.is_shared()
            && placement.pace().is_none()
            && placement.ranks().is_empty()
            && placement.gpu_of(Role::Target(0)).is_none()
    }

    /// Returns the drafters as they are on the target's worker if they are repeated there: after
    /// all others, in the same order.
    fn repeated_drafters(&self) -> Vec<WorkerModel> {
        let (models, count) = (self.drafters_with_models(), self.n_drafters());
        let model =
            |index| models.iter().find(|(other, _)| *other == index).map(|&(_, model)| model);
        let repeated = |index| self.worker_model(Role::Drafter(count + index), model(index));
        (0..count).map(repeated).collect()
    }

    fn worker_model(&self, role: Role, checkpoint: Option<&ModelSource>) -> WorkerModel {
        WorkerModel { role, checkpoint: checkpoint.map(ToString::to_string) }
    }

    /// Returns the drafters that need no model, with their indices.
    pub(crate) fn drafters_on_tokens(&self) -> Vec<(usize, DrafterKind)> {
        let first = Some(self.drafter()).filter(|kind| kind.is_on_tokens());
        let additional = (1..).zip(self.additional_drafters());
        let additional = additional.filter_map(|(index, drafter)| match drafter {
            AdditionalDrafter::Tokens(kind) => Some((index, *kind)),
            AdditionalDrafter::Model(_) => None,
        });
        first.map(|kind| (0, kind)).into_iter().chain(additional).collect()
    }

    /// Returns the drafters with models, with their indices.
    pub(crate) fn drafters_with_models(&self) -> Vec<(usize, &ModelSource)> {
        let first = self.draft_model().map(|model| (0, model));
        let additional = (1..).zip(self.additional_drafters());
        let additional = additional.filter_map(|(index, drafter)| match drafter {
            AdditionalDrafter::Model(model) => Some((index, model)),
            AdditionalDrafter::Tokens(_) => None,
        });
        first.into_iter().chain(additional).collect()
    }
}

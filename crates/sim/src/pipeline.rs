//! Drafter and target on the same devices: the target's layers on several of them in turn, the drafter on
//! the last and the first (PEARL, arXiv 2408.11850, appendix G).
//!
//! While the target is on its first devices, the drafter works on the last; when the target comes there, the
//! drafter goes on on the first one. What both want at one time, one of them waits for: a device does one
//! thing at a time, and what came first is done first.

use crate::device::Passes;
use forerun_core::{Role, Ticket};
use serde::{Deserialize, Serialize};

/// Devices that a target and its drafter share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDevices {
    /// Devices, each with the same share of the target's layers.
    pub devices: usize,
    /// Nanoseconds of sending the drafter's cache from one device to another.
    pub transport_ns: u64,
}

/// What the devices do, and will do for the jobs that have started.
pub(crate) struct DeviceSchedule {
    pipeline: SharedDevices,
    /// For each device: starts and ends, and whose work it is.
    busy: Vec<Vec<(u64, u64, Ticket)>>,
    /// Where the drafter's cache is.
    drafts_on: Option<usize>,
}

impl DeviceSchedule {
    pub(crate) fn new(pipeline: SharedDevices) -> Self {
        let pipeline = SharedDevices { devices: pipeline.devices.max(1), ..pipeline };
        Self { pipeline, busy: vec![Vec::new(); pipeline.devices], drafts_on: None }
    }

    /// Takes devices for a job that starts at `at_ns`, and tells when it ends.
    pub(crate) fn take(&mut self, ticket: Ticket, role: Role, passes: &Passes, at_ns: u64) -> u64 {
        // What has ended cannot stand in anybody's way.
        self.busy.iter_mut().for_each(|device| device.retain(|&(_, end_ns, _)| end_ns > at_ns));
        match role {
            Role::Target(_) => self.take_in_turn(ticket, passes.total_ns(), at_ns),
            Role::Drafter(_) => self.draft(ticket, passes, at_ns),
        }
    }

    /// A pass over all layers, device by device.
    fn take_in_turn(&mut self, ticket: Ticket, total_ns: u64, at_ns: u64) -> u64 {
        let devices = self.pipeline.devices as u64;
        // Shares that add up to the whole.
        let until = |device: u64| total_ns * device / devices;
        (0..devices).fold(at_ns, |at_ns, device| {
            self.reserve(ticket, device as usize, until(device + 1) - until(device), at_ns)
        })
    }

    /// The first half of the draft tokens on the last device, the others on the first.
    fn draft(&mut self, ticket: Ticket, passes: &Passes, at_ns: u64) -> u64 {
        let times: Vec<u64> = passes.each().collect();
        let first_half = times.len().div_ceil(2);
        let mut at_ns = at_ns;
        for (index, ns) in times.into_iter().enumerate() {
            let device = if index < first_half { self.pipeline.devices - 1 } else { 0 };
            if self.drafts_on.replace(device).is_some_and(|before| before != device) {
                at_ns += self.pipeline.transport_ns;
            }
            at_ns = self.reserve(ticket, device, ns, at_ns);
        }
        at_ns
    }

    /// The first time from `at_ns` on in which a device is free for so long; tells its end.
    fn reserve(&mut self, ticket: Ticket, device: usize, ns: u64, at_ns: u64) -> u64 {
        let busy = &mut self.busy[device];
        busy.sort_unstable();
        let start_ns = busy.iter().fold(at_ns, |start_ns, &(from_ns, to_ns, _)| {
            let is_free = start_ns + ns <= from_ns || to_ns <= start_ns;
            if is_free { start_ns } else { to_ns }
        });
        busy.push((start_ns, start_ns + ns, ticket));
        start_ns + ns
    }

    /// Gives back what a cancelled job would have taken from `at_ns` on.
    pub(crate) fn give_back(&mut self, ticket: Ticket, at_ns: u64) {
        for device in &mut self.busy {
            device.retain(|&(start_ns, _, own)| own != ticket || start_ns < at_ns);
            for (_, end_ns, own) in device.iter_mut() {
                if *own == ticket {
                    *end_ns = (*end_ns).min(at_ns);
                }
            }
        }
    }
}

//! Drafter and target on the same devices (PEARL, arXiv 2408.11850, appendix G).
//!
//! The target is split by layers over several devices, which a pass visits one after another. The
//! drafter uses the last and the first device:
//!
//! 1. While the target computes on its first devices, the drafter computes on the last one.
//! 2. When the target reaches the last device, the drafter continues on the first one.
//!
//! A device does one thing at a time, first come, first served. If both need the same device, one
//! waits.

use crate::device::Passes;
use forerun_core::{Role, Ticket};
use serde::{Deserialize, Serialize};

/// Devices that a target and its drafter share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedDevices {
    /// Number of devices. Each has the same share of the target's layers.
    pub devices: usize,
    /// Time of sending the drafter's cache from one device to another, in nanoseconds.
    pub transport_ns: u64,
}

/// The reservations of all devices for jobs that have started.
pub(crate) struct DeviceSchedule {
    shared: SharedDevices,
    /// For each device, the start, the end and the job of every reservation.
    busy: Vec<Vec<(u64, u64, Ticket)>>,
    /// The device that holds the drafter's cache.
    drafter_device: Option<usize>,
}

impl DeviceSchedule {
    pub(crate) fn new(shared: SharedDevices) -> Self {
        let shared = SharedDevices { devices: shared.devices.max(1), ..shared };
        Self { shared, busy: vec![Vec::new(); shared.devices], drafter_device: None }
    }

    /// Reserves devices for a job that starts at `at_ns` and returns its end.
    pub(crate) fn reserve(
        &mut self,
        ticket: Ticket,
        role: Role,
        passes: &Passes,
        at_ns: u64,
    ) -> u64 {
        // Reservations that have ended no longer matter.
        self.busy.iter_mut().for_each(|device| device.retain(|&(_, end_ns, _)| end_ns > at_ns));
        match role {
            Role::Target(_) => self.reserve_target(ticket, passes.total_ns(), at_ns),
            Role::Drafter(_) => self.reserve_drafter(ticket, passes, at_ns),
        }
    }

    /// Reserves a pass over all layers, one device after another.
    fn reserve_target(&mut self, ticket: Ticket, total_ns: u64, at_ns: u64) -> u64 {
        let devices = self.shared.devices as u64;
        // Shares that add up to the total exactly.
        let until = |device: u64| total_ns * device / devices;
        (0..devices).fold(at_ns, |at_ns, device| {
            self.reserve_device(ticket, device as usize, until(device + 1) - until(device), at_ns)
        })
    }

    /// Reserves the last device for the first half of the draft tokens, the first device for the
    /// rest.
    fn reserve_drafter(&mut self, ticket: Ticket, passes: &Passes, at_ns: u64) -> u64 {
        let times: Vec<u64> = passes.each().collect();
        let first_half = times.len().div_ceil(2);
        let mut at_ns = at_ns;
        for (index, ns) in times.into_iter().enumerate() {
            let device = if index < first_half { self.shared.devices - 1 } else { 0 };
            if self.drafter_device.replace(device).is_some_and(|before| before != device) {
                at_ns += self.shared.transport_ns;
            }
            at_ns = self.reserve_device(ticket, device, ns, at_ns);
        }
        at_ns
    }

    /// Reserves the first free interval of length `ns` at or after `at_ns` and returns its end.
    fn reserve_device(&mut self, ticket: Ticket, device: usize, ns: u64, at_ns: u64) -> u64 {
        let busy = &mut self.busy[device];
        busy.sort_unstable();
        let start_ns = busy.iter().fold(at_ns, |start_ns, &(from_ns, to_ns, _)| {
            let is_free = start_ns + ns <= from_ns || to_ns <= start_ns;
            if is_free { start_ns } else { to_ns }
        });
        busy.push((start_ns, start_ns + ns, ticket));
        start_ns + ns
    }

    /// Releases the reservations of a cancelled job after `at_ns`.
    pub(crate) fn release_after(&mut self, ticket: Ticket, at_ns: u64) {
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

//! GPUs.

use super::Check;

/// Says whether this build can use a GPU. A build with GPU support looks for devices and drivers here.
pub(super) fn check() -> Check {
    Check::ok("gpu", "this build runs on the CPU only")
}

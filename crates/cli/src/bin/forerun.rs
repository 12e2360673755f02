//! The `forerun` program.

use std::process::ExitCode;

/// A server that compiles many grammars on several threads keeps three times the memory with the
/// allocator of glibc, and that of musl is slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(all(feature = "gpu", target_os = "linux"))]
    leave_out_mesas_choice();
    forerun_cli::run(std::env::args_os().collect())
}

/// Leaves out Mesa's layer of Vulkan that chooses among GPUs, unless a variable tells it what to
/// choose. It connects to the desktop, which prints errors where there is none.
#[cfg(all(feature = "gpu", target_os = "linux"))]
fn leave_out_mesas_choice() {
    let variables = ["XDG_RUNTIME_DIR", "MESA_VK_DEVICE_SELECT", "DRI_PRIME"];
    if variables.iter().all(|name| std::env::var_os(name).is_none()) {
        // SAFETY: the process has no other thread yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

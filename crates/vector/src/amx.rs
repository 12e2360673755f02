//! Whether this process may use AMX, the matrix unit of x86-64 processors.

#[cfg(target_os = "linux")]
use std::arch::x86_64::{__cpuid_count, CpuidResult};

/// Returns whether the processor has AMX with bf16 numbers and bytes, and the system lets this
/// process use it.
#[cfg(target_os = "linux")]
pub(crate) fn is_permitted() -> bool {
    has_tiles() && may_use_tiles()
}

/// Other systems than Linux are not supported: how they permit AMX has not been tried.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_permitted() -> bool {
    false
}

#[cfg(target_os = "linux")]
fn has_tiles() -> bool {
    const LEAF: u32 = 7;
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const ALL: u32 = BF16 | TILE | INT8;
    // Newer compilers declare the function as safe, older ones do not. Both are pointers to unsafe
    // functions.
    let cpuid: unsafe fn(u32, u32) -> CpuidResult = __cpuid_count;
    // SAFETY: every x86-64 processor has the instruction.
    let (last_leaf, features) = unsafe { (cpuid(0, 0).eax, cpuid(LEAF, 0).edx) };
    last_leaf >= LEAF && features & ALL == ALL
}

/// Asks Linux for the tile registers, for all threads of this process. Their state takes 8 KB in a
/// thread that uses them, so the system reserves none without a request. Linux refuses if it is
/// older than 5.16.
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const SYS_ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let status: isize;
    // SAFETY: the call reads no memory. The kernel changes no other registers than these.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    status == 0
}

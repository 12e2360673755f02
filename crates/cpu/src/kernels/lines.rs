//! Memory for packed weights: whole cache lines, in huge pages where the system has them.
//!
//! A pass reads all weights once, and processors prefetch only within a page. So huge pages let one
//! thread read up to half as fast again (`docs/experiments/quantised-kernels.md`). Most matrices are
//! too small to fill them alone, and share regions.

use forerun_formats::LoadError;
use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The size of a region for several matrices in bytes. Its addresses are freed with the last of them.
const REGION_BYTES: usize = 64 << 20;
/// Larger matrices have a region of their own, which is freed with them.
const SHARED_BYTES: usize = REGION_BYTES / 4;
/// At least the size of the system's small pages in bytes.
#[cfg(target_os = "linux")]
const PAGE_BYTES: usize = 1 << 16;
/// The alignment of every allocation.
const LINE_BYTES: usize = 64;

/// Cache lines that belong to one matrix.
pub(crate) struct Lines {
    region: Arc<MmapRaw>,
    /// The first byte in the region.
    start: usize,
    bytes: usize,
}

/// The region from which lines are taken, and its first free byte.
static SHARED: Mutex<(Weak<MmapRaw>, usize)> = Mutex::new((Weak::new(), 0));

impl Lines {
    /// Allocates lines of zeros. `bytes` is rounded up to whole lines.
    ///
    /// # Errors
    /// If the system has no memory left.
    pub(crate) fn zeroed(bytes: usize) -> Result<Self, LoadError> {
        Self::allocate(bytes).map_err(|_| LoadError::OutOfMemory { bytes })
    }

    fn allocate(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.checked_next_multiple_of(LINE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        if bytes > SHARED_BYTES {
            return Ok(Self { region: map(bytes)?, start: 0, bytes });
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let (region, used) = &mut *shared;
        let region = match region.upgrade() {
            Some(region) if region.len() - *used >= bytes => region,
            _ => {
                let new = map(REGION_BYTES)?;
                (*region, *used) = (Arc::downgrade(&new), 0);
                new
            }
        };
        let start = *used;
        *used += bytes;
        Ok(Self { region, start, bytes })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the range is in the region, which is initialised (with zeros) and lives as long
        // as `self`. No other `Lines` has any byte of it: `used` only grows.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().add(self.start), self.bytes) }
    }

    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`; the borrow of `self` is exclusive.
        unsafe {
            std::slice::from_raw_parts_mut(self.region.as_mut_ptr().add(self.start), self.bytes)
        }
    }
}

/// Gives the whole pages back at once: other models may keep the region for long.
#[cfg(target_os = "linux")]
impl Drop for Lines {
    fn drop(&mut self) {
        let start = self.start.next_multiple_of(PAGE_BYTES);
        let end = (self.start + self.bytes) / PAGE_BYTES * PAGE_BYTES;
        if let Some(bytes) = end.checked_sub(start).filter(|bytes| *bytes > 0) {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: no other `Lines` has a byte of these pages, and nothing borrows these. Failure
            // only keeps the memory.
            drop(unsafe { self.region.unchecked_advise_range(advice, start, bytes) });
        }
    }
}

/// Maps zeros, at a page's start.
fn map(bytes: usize) -> io::Result<Arc<MmapRaw>> {
    let map = MmapMut::map_anon(bytes.max(LINE_BYTES))?;
    // A system without huge pages refuses, and the weights are in small pages.
    #[cfg(target_os = "linux")]
    drop(map.advise(memmap2::Advice::HugePage));
    Ok(Arc::new(map.into()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Pages that went back read as zeros.
    #[test]
    #[cfg(target_os = "linux")]
    fn memory_goes_back_while_others_keep_the_region() {
        let mut lines = Lines::zeroed(SHARED_BYTES).unwrap();
        lines.as_bytes_mut().fill(7);
        let (region, middle) = (Arc::clone(&lines.region), lines.start + SHARED_BYTES / 2);
        // SAFETY: the byte is in the region, and nobody writes it.
        let byte = || unsafe { region.as_ptr().add(middle).read_volatile() };
        assert_eq!(byte(), 7);
        drop(lines);
        assert_eq!(byte(), 0);
    }

    #[test]
    fn lines_are_zeros_and_belong_to_one_matrix() {
        let mut all: Vec<Lines> = [64, 1, 4096, SHARED_BYTES, SHARED_BYTES + 1]
            .map(|bytes| Lines::zeroed(bytes).unwrap())
            .into();
        for (number, lines) in (1..).zip(&mut all) {
            assert!(lines.as_bytes().iter().all(|&byte| byte == 0));
            assert!(lines.as_bytes().as_ptr().addr().is_multiple_of(LINE_BYTES));
            lines.as_bytes_mut().fill(number);
        }
        for (number, lines) in (1..).zip(&all) {
            assert!(lines.as_bytes().iter().all(|&byte| byte == number));
        }
    }
}

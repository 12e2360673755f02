//! The tests that every device must pass, written once.
//!
//! A crate with a device implements [`Device`] in its tests, and expands each suite in a module of
//! its own:
//!
//! ```ignore
//! mod row_invariance {
//!     forerun_suite::row_invariance!(crate::device::Cpu);
//! }
//! ```
//!
//! A new test for all devices is a function of a suite, and its name in the list at the top of the
//! suite's file. The compiler reports a function that is in no list.

#![expect(clippy::unwrap_used, reason = "tests")]

/// Makes a suite of the functions with these names, each of which takes a [`Device`].
///
/// The first token is a `$`, which the macro of the suite needs for its own argument.
macro_rules! suite {
    ($dollar:tt $suite:ident: $($test:ident),+ $(,)?) => {
        /// The tests of this suite by name, for its macro.
        #[doc(hidden)]
        pub mod tests {
            $(
                /// Runs the test of this name.
                pub fn $test<D: $crate::Device>(device: &D) {
                    super::$test(device);
                }
            )+
        }

        /// Expands to the tests of this suite for a type of device.
        #[macro_export]
        macro_rules! $suite {
            ($dollar device:ty) => {
                $(
                    #[test]
                    fn $test() {
                        $crate::run::<$dollar device>($crate::$suite::tests::$test);
                    }
                )+
            };
        }
    };
}

pub mod batches;
mod comparison;
mod device;
mod examples;
mod kinds;
mod prelude;
pub mod reference_device;
pub mod row_invariance;
pub mod speculators;

pub use comparison::{Models, all_layers, outputs};
pub use device::{Device, DrafterSource, Effort, Offer, Run, TargetPart};
pub use examples::{LONGEST_TEXT, examples};

use prelude::*;
use proptest::test_runner::TestRunner;

/// Runs a test on a device. Without the device, the test is skipped.
pub fn run<D: Device>(test: impl Fn(&D)) {
    if let Some(device) = D::get() {
        test(device);
    }
}

/// Runs a test on random cases, and panics with the smallest one that fails. The number of cases is
/// the device's, so this is no `proptest!`.
pub fn check<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> TestCaseResult) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    if let Err(error) = TestRunner::new(config).run(strategy, test) {
        panic!("{error}");
    }
}

//! Drafters. All tests are one program, because each program takes seconds to link.

mod layer_parallel;
mod missed_rounds;
mod partial_rows;

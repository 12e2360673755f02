//! How much each input of a model's matrices matters.

use crate::tensor::{LayerTensor, Tensor};
use std::collections::HashMap;

/// The mean squared activation of each input of a model's matrices, on some text: an importance
/// matrix, as llama.cpp calls it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    inputs: HashMap<Tensor, Vec<f32>>,
}

impl Importance {
    /// Sets the importance of the inputs of a matrix, and of all matrices of the same projection:
    /// one finite value, not negative, for each input.
    pub fn insert(&mut self, tensor: Tensor, inputs: Vec<f32>) {
        self.inputs.insert(first_of_projection(tensor), inputs);
    }

    /// Returns the importance of a matrix's inputs. It is `None` for a matrix of another model,
    /// which has another number of inputs.
    #[must_use]
    pub fn of(&self, tensor: Tensor, inputs: usize) -> Option<&[f32]> {
        let found = self.inputs.get(&first_of_projection(tensor))?;
        (found.len() == inputs).then_some(found)
    }
}

/// Returns the first matrix of a projection, which has the same inputs.
fn first_of_projection(tensor: Tensor) -> Tensor {
    let Tensor::Layer(layer, part) = tensor else { return tensor };
    let projection = LayerTensor::PROJECTIONS.into_iter().find(|parts| parts.contains(&part));
    Tensor::Layer(layer, projection.map_or(part, |parts| parts[0]))
}

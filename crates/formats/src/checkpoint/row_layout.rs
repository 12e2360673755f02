//! Where the rows of a tensor are in the stored tensor, if that holds more or holds them in another
//! order.

/// The arrangement of a tensor's rows, or of the values of a vector, in a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowLayout {
    /// The index of the first row.
    pub(crate) first: usize,
    /// The rows lie in runs of this length.
    pub(crate) run: usize,
    /// The distance from the start of one run to the start of the next.
    pub(crate) stride: usize,
    /// How RoPE's pairs are arranged, if not as halves.
    pub(crate) interleaved: Option<Interleaved>,
    /// The number of outputs of the stored matrix, if it is `[inputs, outputs]`.
    pub(crate) transposed: Option<usize>,
    /// What is added to each stored value (Gemma's norms).
    pub(crate) offset: f32,
}

/// Rows of heads of which RoPE rotates neighbours, (2i, 2i+1), rather than (i, i + dims/2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interleaved {
    pub(crate) head_dim: usize,
    /// The index of the first row of a head that is rotated.
    pub(crate) first: usize,
    /// The number of rows that are rotated.
    pub(crate) dims: usize,
}

impl Interleaved {
    /// Rows of heads that are rotated as a whole.
    pub(crate) fn whole(head_dim: usize) -> Self {
        Self { head_dim, first: 0, dims: head_dim }
    }
}

impl RowLayout {
    /// The rows are stored one after another, and nothing else is.
    pub(crate) const PLAIN: Self = Self {
        first: 0,
        run: usize::MAX,
        stride: 0,
        interleaved: None,
        transposed: None,
        offset: 0.0,
    };

    /// Returns the layout of rows that follow one another from this one on.
    pub(crate) fn from_row(first: usize) -> Self {
        Self { first, ..Self::PLAIN }
    }

    /// Returns the layout of the rows of another matrix with these outputs, which come first in it.
    pub(crate) fn untransposed(self) -> Self {
        Self { transposed: None, ..self }
    }

    pub(crate) fn runs(first: usize, run: usize, stride: usize) -> Self {
        Self { first, run, stride, ..Self::PLAIN }
    }

    /// Returns the index of a row in the stored tensor. Rows are in the half-split order of RoPE.
    pub(crate) fn index(&self, row: usize) -> usize {
        let row = match self.interleaved {
            Some(Interleaved { head_dim, first, dims })
                if (first..first + dims).contains(&(row % head_dim)) =>
            {
                let (head, within, half) = (row / head_dim, row % head_dim - first, dims / 2);
                head * head_dim + first + within % half * 2 + within / half
            }
            _ => row,
        };
        self.first + row / self.run * self.stride + row % self.run
    }
}

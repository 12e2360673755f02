//! Types in CUDA C.

use super::TranslateError;
use std::fmt::Write as _;
use wgpu::naga::{
    ArraySize, Handle, Module, Scalar, ScalarKind, StructMember, Type, TypeInner, VectorSize,
};

/// The names of a module's types in CUDA C.
pub(super) struct TypeNames<'a> {
    module: &'a Module,
}

/// Returns the name of a member of a structure.
pub(super) fn member_name(index: usize, member: &StructMember) -> String {
    format!("m{index}_{}", member.name.as_deref().unwrap_or_default())
}

/// Returns the name of a vector's component.
pub(super) fn component_name(index: u32) -> &'static str {
    ["x", "y", "z", "w"][index as usize & 3]
}

impl<'a> TypeNames<'a> {
    pub(super) fn new(module: &'a Module) -> Self {
        Self { module }
    }

    /// Returns the name of a type.
    pub(super) fn of(&self, handle: Handle<Type>) -> Result<String, TranslateError> {
        let named = &self.module.types[handle];
        match named.inner {
            TypeInner::Struct { .. } => {
                let name = named.name.as_deref().unwrap_or_default();
                Ok(format!("S{}_{name}", handle.index()))
            }
            ref inner => self.of_inner(inner),
        }
    }

    /// Returns the name of a type that is no structure.
    pub(super) fn of_inner(&self, inner: &TypeInner) -> Result<String, TranslateError> {
        match *inner {
            TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => {
                Ok(scalar_name(scalar)?.into())
            }
            TypeInner::Vector { size, scalar } => vector_name(size, scalar),
            TypeInner::Array { base, size: ArraySize::Constant(len), .. } => {
                Ok(format!("Array<{}, {len}>", self.of(base)?))
            }
            ref other => Err(TranslateError::unsupported(format!("the type {other:?}"))),
        }
    }

    /// Writes all structures, and checks that the compiler lays them out as WGSL does.
    pub(super) fn write_structs(&self) -> Result<String, TranslateError> {
        let mut text = String::new();
        for (handle, named) in self.module.types.iter() {
            let TypeInner::Struct { ref members, span } = named.inner else { continue };
            let name = self.of(handle)?;
            let _ = writeln!(text, "struct {name} {{");
            for (index, member) in members.iter().enumerate() {
                let (of, member) = (self.of(member.ty)?, member_name(index, member));
                let _ = writeln!(text, "  {of} {member};");
            }
            text.push_str("};\n");
            if members.iter().any(|member| self.has_booleans(member.ty)) {
                // They are in no buffer, so their layout does not matter.
                continue;
            }
            let _ = writeln!(text, "static_assert(sizeof({name}) == {span}, \"the size\");");
            for (index, member) in members.iter().enumerate() {
                let (member, offset) = (member_name(index, member), member.offset);
                let _ = writeln!(text, "MEMBER_AT({name}, {member}, {offset})");
            }
        }
        Ok(text)
    }

    /// Checks that C++ lays out what the host writes and reads as WGSL does. Returns the size and
    /// the alignment in bytes in C++.
    ///
    /// # Errors
    /// If it does not: vectors of three are not aligned in C++.
    pub(super) fn check_layout(&self, handle: Handle<Type>) -> Result<[u32; 2], TranslateError> {
        let differs = |what: String| {
            TranslateError::unsupported(format!("{what} whose layout in C++ is another one"))
        };
        match self.module.types[handle].inner {
            TypeInner::Scalar(_) | TypeInner::Atomic(_) => Ok([4, 4]),
            TypeInner::Vector { size: VectorSize::Bi, .. } => Ok([8, 8]),
            TypeInner::Vector { size: VectorSize::Tri, .. } => Ok([12, 4]),
            TypeInner::Vector { size: VectorSize::Quad, .. } => Ok([16, 16]),
            TypeInner::Array { base, size, stride } => {
                let [bytes, alignment] = self.check_layout(base)?;
                if bytes != stride {
                    return Err(differs(format!(
                        "an array with elements at multiples of {stride} bytes"
                    )));
                }
                let length = if let ArraySize::Constant(length) = size { length.get() } else { 1 };
                Ok([bytes.saturating_mul(length), alignment])
            }
            TypeInner::Struct { ref members, span } => {
                let (mut end, mut most) = (0_u32, 1);
                for (index, member) in members.iter().enumerate() {
                    let [bytes, alignment] = self.check_layout(member.ty)?;
                    if end.next_multiple_of(alignment) != member.offset {
                        return Err(differs(format!(
                            "a structure with {}",
                            member_name(index, member)
                        )));
                    }
                    end = member.offset.saturating_add(bytes);
                    most = most.max(alignment);
                }
                match end.next_multiple_of(most) == span {
                    true => Ok([span, most]),
                    false => Err(differs(format!("a structure of {span} bytes"))),
                }
            }
            ref other => {
                Err(TranslateError::unsupported(format!("the type {other:?} in a buffer")))
            }
        }
    }

    fn has_booleans(&self, handle: Handle<Type>) -> bool {
        match self.module.types[handle].inner {
            TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } => {
                scalar.kind == ScalarKind::Bool
            }
            TypeInner::Array { base, .. } => self.has_booleans(base),
            TypeInner::Struct { ref members, .. } => {
                members.iter().any(|member| self.has_booleans(member.ty))
            }
            _ => false,
        }
    }
}

fn scalar_name(scalar: Scalar) -> Result<&'static str, TranslateError> {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 4) => Ok("float"),
        (ScalarKind::Uint, 4) => Ok("u32"),
        (ScalarKind::Sint, 4) => Ok("i32"),
        (ScalarKind::Bool, _) => Ok("bool"),
        _ => Err(TranslateError::unsupported(format!("the type {scalar:?}"))),
    }
}

/// Returns the name of a vector's type.
pub(super) fn vector_name(size: VectorSize, scalar: Scalar) -> Result<String, TranslateError> {
    let letter = match scalar_name(scalar)? {
        "float" => 'F',
        "u32" => 'U',
        "i32" => 'I',
        _ => 'B',
    };
    Ok(format!("{letter}{}", size as u8))
}

/// Returns the name of a scalar's or a vector's type, which has `size` components.
pub(super) fn shaped_name(
    size: Option<VectorSize>,
    scalar: Scalar,
) -> Result<String, TranslateError> {
    match size {
        Some(size) => vector_name(size, scalar),
        None => Ok(scalar_name(scalar)?.into()),
    }
}

//! Kernels in WGSL as CUDA C.
//!
//! The output needs no headers of CUDA's. Every operation on floats is a function with defined
//! rounding, such as `__fadd_rn`, which compilers may neither contract nor reorder (CUDA C++
//! Programming Guide, "Intrinsic Functions"). Integers wrap, shifts take the low five bits, and
//! conversions saturate, as WGSL defines. The same text compiles as C++ for the emulator.
//!
//! Only what kernels need is translated: compute entry points with workgroups of one dimension,
//! storage buffers that are arrays, immediates, workgroup and private memory, and 32-bit numbers.
//! All else is an error that names it.

mod expression;
mod function;
mod types;

use function::FunctionWriter;
use std::fmt::Write as _;
use types::TypeNames;
use wgpu::naga::front::wgsl;
use wgpu::naga::valid::{Capabilities, FunctionInfo, ModuleInfo, ValidationFlags, Validator};
use wgpu::naga::{
    AddressSpace, ArraySize, Block, GlobalVariable, Handle, Module, ShaderStage, Statement,
    StorageAccess, TypeInner,
};

/// Why a kernel cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// It is not valid WGSL.
    #[error("not valid WGSL: {0}")]
    Invalid(String),
    /// It uses something that is not translated.
    #[error("{0} cannot be translated to CUDA C yet (crates/cuda/src/translate.rs)")]
    Unsupported(String),
}

impl TranslateError {
    fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }
}

/// A kernel in CUDA C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The source, without the part that all kernels share.
    pub(crate) source: String,
    /// The number of threads of a block.
    pub threads: u32,
    /// The bindings in the order of the kernel's parameters, and whether each is written.
    pub bindings: Vec<(u32, bool)>,
    /// The least size of the immediates in bytes, which are the last parameter; 0 without.
    pub immediate_bytes: u32,
}

/// The name of every kernel's function.
pub const KERNEL_NAME: &str = "kernel";

const COMMON: &str = include_str!("common.cuh");

impl Translation {
    /// Returns a kernel that is written in CUDA C, with what `common.cuh` and the two files for
    /// GPUs and for the emulator define. Its parameters are its bindings, in order, and then
    /// `Parameters` for the immediates. `None` if it does not declare a kernel.
    #[must_use]
    pub fn of_cuda_c(source: &str, threads: u32) -> Option<Self> {
        let (_, declaration) = source.split_once("\nKERNEL(")?;
        let (declaration, _) = declaration.split_once('{')?;
        let buffers = declaration.match_indices("S(");
        let kinds = buffers.map(|(at, _)| declaration[..at].ends_with("WRITE"));
        let immediate_bytes = if declaration.contains("const Parameters ") { 4 } else { 0 };
        let bindings = (0..).zip(kinds).collect();
        Some(Self { source: source.to_owned(), threads, bindings, immediate_bytes })
    }

    /// Returns the complete source for NVRTC.
    #[must_use]
    pub fn cuda_source(&self) -> String {
        [include_str!("gpu.cuh"), COMMON, &self.source].concat()
    }

    /// Returns the complete source in C++ for the emulator, whose tensor cores have this order of
    /// additions.
    pub(crate) fn emulator_source(&self, order: u32) -> String {
        let multiplies = self.source.contains("MULTIPLY_BF16");
        let order = format!("#define MMA_ORDER {}u\n", if multiplies { order } else { 0 });
        [&order, include_str!("emulator.hpp"), COMMON, &self.source].concat()
    }
}

/// Translates the only entry point of a module in WGSL.
///
/// # Errors
/// If the source is not valid, or uses something that is not translated.
pub fn translate(source: &str) -> Result<Translation, TranslateError> {
    let module = wgsl::parse_str(source)
        .map_err(|error| TranslateError::Invalid(error.emit_to_string(source)))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator
        .validate(&module)
        .map_err(|error| TranslateError::Invalid(error.emit_to_string(source)))?;
    ModuleWriter { module: &module, info: &info, names: TypeNames::new(&module) }.write()
}

/// Where a function finds a global variable.
enum Place {
    /// A parameter of every function that uses it.
    Parameter,
    /// A member of the block's shared memory.
    Shared,
}

struct ModuleWriter<'a> {
    module: &'a Module,
    info: &'a ModuleInfo,
    names: TypeNames<'a>,
}

impl<'a> ModuleWriter<'a> {
    fn write(&self) -> Result<Translation, TranslateError> {
        let [entry] = self.module.entry_points.as_slice() else {
            return Err(TranslateError::unsupported("a module without exactly one entry point"));
        };
        if entry.stage != ShaderStage::Compute || entry.workgroup_size_overrides.is_some() {
            return Err(TranslateError::unsupported("an entry point that is no plain kernel"));
        }
        let [threads, 1, 1] = entry.workgroup_size else {
            return Err(TranslateError::unsupported("a workgroup of several dimensions"));
        };
        if !self.module.overrides.is_empty() {
            return Err(TranslateError::unsupported("an override"));
        }
        for (_, global) in self.module.global_variables.iter() {
            if matches!(global.space, AddressSpace::Storage { .. } | AddressSpace::Immediate) {
                self.names.check_layout(global.ty)?;
            }
        }
        let mut source = self.names.write_structs()?;
        self.write_shared_memory(&mut source)?;
        for (handle, function) in self.module.functions.iter() {
            let writer = FunctionWriter::new(self, function, &self.info[handle]);
            source.push_str(&writer.write_function(handle)?);
        }
        let info = self.info.get_entry_point(0);
        source.push_str(&FunctionWriter::new(self, &entry.function, info).write_kernel(threads)?);
        let bindings = self.bindings(info)?;
        let immediates =
            self.used(info).find(|(_, global)| global.space == AddressSpace::Immediate);
        let immediate_bytes = match immediates {
            Some((_, global)) => self.module.types[global.ty].inner.size(self.module.to_ctx()),
            None => 0,
        };
        self.write_emulated_call(&mut source, threads, info)?;
        let bindings = bindings.into_iter().map(|(_, binding, is_written)| (binding, is_written));
        Ok(Translation { source, threads, bindings: bindings.collect(), immediate_bytes })
    }

    /// Returns the global variables that a function uses, itself or through others.
    fn used(
        &self,
        info: &'a FunctionInfo,
    ) -> impl Iterator<Item = (Handle<GlobalVariable>, &'a GlobalVariable)> {
        self.module.global_variables.iter().filter(|(handle, _)| !info[*handle].is_empty())
    }

    /// Returns the storage buffers that a kernel uses, their bindings, and whether they are
    /// written, in the order of its parameters.
    fn bindings(
        &self,
        info: &'a FunctionInfo,
    ) -> Result<Vec<(Handle<GlobalVariable>, u32, bool)>, TranslateError> {
        let mut bindings = Vec::new();
        for (handle, global) in self.used(info) {
            let AddressSpace::Storage { access } = global.space else { continue };
            match global.binding {
                Some(binding) if binding.group == 0 => {
                    bindings.push((handle, binding.binding, access.contains(StorageAccess::STORE)));
                }
                _ => return Err(TranslateError::unsupported("a binding outside group 0")),
            }
        }
        Ok(bindings)
    }

    fn place(&self, global: &GlobalVariable) -> Result<Place, TranslateError> {
        match global.space {
            AddressSpace::Storage { .. } | AddressSpace::Immediate | AddressSpace::Private => {
                Ok(Place::Parameter)
            }
            AddressSpace::WorkGroup => Ok(Place::Shared),
            space => Err(TranslateError::unsupported(format!("a variable in {space:?}"))),
        }
    }

    /// Returns the name of a global variable.
    fn global_name(&self, handle: Handle<GlobalVariable>) -> String {
        let name = self.module.global_variables[handle].name.as_deref().unwrap_or_default();
        format!("g{}_{name}", handle.index())
    }

    /// Returns the name of the elements of a storage buffer.
    fn element_name(&self, global: &GlobalVariable) -> Result<String, TranslateError> {
        match self.module.types[global.ty].inner {
            TypeInner::Array { base, size: ArraySize::Dynamic, .. } => {
                // The name of an array's type has a comma, which ends an argument of a macro.
                if matches!(self.module.types[base].inner, TypeInner::Array { .. }) {
                    return Err(TranslateError::unsupported("a buffer of arrays"));
                }
                self.names.of(base)
            }
            _ => Err(TranslateError::unsupported("a buffer that is not an array")),
        }
    }

    /// Returns how a kernel or a function declares a global variable as a parameter. `None` if it
    /// is none.
    fn parameter(
        &self,
        (handle, global): (Handle<GlobalVariable>, &GlobalVariable),
        of_kernel: bool,
    ) -> Result<Option<String>, TranslateError> {
        let name = self.global_name(handle);
        Ok(match (self.place(global)?, global.space) {
            (Place::Shared, _) => None,
            (_, AddressSpace::Storage { access }) => {
                let element = self.element_name(global)?;
                let is_written = access.contains(StorageAccess::STORE);
                let kind = if is_written { "WRITES" } else { "READS" };
                Some(format!("{kind}({element}, {name})"))
            }
            (_, AddressSpace::Immediate) => {
                let reference = if of_kernel { "" } else { "&" };
                Some(format!("const {}{reference} {name}", self.names.of(global.ty)?))
            }
            _ if of_kernel => None,
            _ => Some(format!("{}& {name}", self.names.of(global.ty)?)),
        })
    }

    /// Shared memory has no defined content when a block begins.
    fn write_shared_memory(&self, source: &mut String) -> Result<(), TranslateError> {
        if !self.has_shared_memory() {
            return Ok(());
        }
        source.push_str("struct Shared {\n");
        for (handle, global) in self.module.global_variables.iter() {
            if global.space == AddressSpace::WorkGroup {
                let (of, name) = (self.names.of(global.ty)?, self.global_name(handle));
                let _ = writeln!(source, "  {of} {name};");
            }
        }
        source.push_str("};\nSHARED_MEMORY(Shared)\n");
        Ok(())
    }

    fn has_shared_memory(&self) -> bool {
        let mut globals = self.module.global_variables.iter();
        globals.any(|(_, global)| global.space == AddressSpace::WorkGroup)
    }

    fn write_emulated_call(
        &self,
        source: &mut String,
        threads: u32,
        info: &'a FunctionInfo,
    ) -> Result<(), TranslateError> {
        let mut arguments = Vec::new();
        for (index, (handle, _, is_written)) in self.bindings(info)?.into_iter().enumerate() {
            let element = self.element_name(&self.module.global_variables[handle])?;
            let constant = if is_written { "" } else { "const " };
            arguments.push(format!("ELEMENTS({constant}{element}, {index})"));
        }
        for (_, global) in self.used(info) {
            if global.space == AddressSpace::Immediate {
                arguments.push(format!("*(const {}*)immediates", self.names.of(global.ty)?));
            }
        }
        let mut bodies = self.module.functions.iter().map(|(_, function)| &function.body);
        let has_barriers = bodies.any(has_barrier)
            || self.module.entry_points.iter().any(|entry| has_barrier(&entry.function.body));
        let spoil = if self.has_shared_memory() { "spoil_shared_memory" } else { "spoil_nothing" };
        let _ = writeln!(
            source,
            "EMULATED({threads}, {has_barriers}, {spoil}, {KERNEL_NAME}({}))",
            arguments.join(", ")
        );
        Ok(())
    }
}

/// Returns whether threads wait for each other in a block of statements. Calls do not count.
fn has_barrier(block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::ControlBarrier(_) => true,
        Statement::Block(block) => has_barrier(block),
        Statement::If { accept, reject, .. } => has_barrier(accept) || has_barrier(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| has_barrier(&case.body)),
        Statement::Loop { body, continuing, .. } => has_barrier(body) || has_barrier(continuing),
        _ => false,
    })
}

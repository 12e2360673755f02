//! Functions and statements.

use super::types::TypeNames;
use super::{KERNEL_NAME, ModuleWriter, TranslateError};
use std::collections::HashMap;
use std::fmt::Write as _;
use wgpu::naga::valid::FunctionInfo;
use wgpu::naga::{
    AddressSpace, AtomicFunction, Binding, Block, BuiltIn, Expression, Function, Handle,
    LocalVariable, Module, Statement, SwitchCase, SwitchValue, TypeInner,
};

/// Writes a function.
pub(super) struct FunctionWriter<'a> {
    pub(super) of: &'a ModuleWriter<'a>,
    pub(super) function: &'a Function,
    pub(super) info: &'a FunctionInfo,
    /// The variables that hold values which have been computed.
    pub(super) computed: HashMap<Handle<Expression>, String>,
    text: String,
    depth: usize,
    /// What each open loop does before it begins again.
    continuing: Vec<Continuing<'a>>,
    /// The number of open `switch` statements in the innermost loop.
    switches: usize,
}

/// The end of a loop's body.
#[derive(Clone, Copy)]
struct Continuing<'a> {
    block: &'a Block,
    break_if: Option<Handle<Expression>>,
}

impl<'a> FunctionWriter<'a> {
    pub(super) fn new(
        of: &'a ModuleWriter<'a>,
        function: &'a Function,
        info: &'a FunctionInfo,
    ) -> Self {
        Self {
            of,
            function,
            info,
            computed: HashMap::new(),
            text: String::new(),
            depth: 1,
            continuing: Vec::new(),
            switches: 0,
        }
    }

    pub(super) fn module(&self) -> &'a Module {
        self.of.module
    }

    pub(super) fn names(&self) -> &'a TypeNames<'a> {
        &self.of.names
    }

    /// Returns the type of an expression.
    pub(super) fn type_of(&self, handle: Handle<Expression>) -> &'a TypeInner {
        self.info[handle].ty.inner_with(&self.module().types)
    }

    /// Writes a function that kernels call.
    pub(super) fn write_function(
        mut self,
        handle: Handle<Function>,
    ) -> Result<String, TranslateError> {
        let result = match &self.function.result {
            Some(result) => self.names().of(result.ty)?,
            None => "void".into(),
        };
        let mut parameters = Vec::new();
        for (index, argument) in self.function.arguments.iter().enumerate() {
            parameters.push(format!("const {} a{index}", self.names().of(argument.ty)?));
        }
        for global in self.of.used(self.info) {
            parameters.extend(self.of.parameter(global, false)?);
        }
        let name = function_name(self.module(), handle);
        let head = format!("DEVICE {result} {name}({}) {{\n", parameters.join(", "));
        self.text = head;
        self.write_body()
    }

    /// Writes the entry point.
    pub(super) fn write_kernel(mut self, threads: u32) -> Result<String, TranslateError> {
        let mut parameters = Vec::new();
        // Immediates are the last parameter.
        let is_immediate = |parameter: &String| parameter.starts_with("const ");
        for global in self.of.used(self.info) {
            parameters.extend(self.of.parameter(global, true)?);
        }
        parameters.sort_by_key(is_immediate);
        self.text = format!("KERNEL({threads}) {KERNEL_NAME}({}) {{\n", parameters.join(", "));
        for (index, argument) in self.function.arguments.iter().enumerate() {
            let value = builtin(argument.binding.as_ref(), threads)?;
            let of = self.names().of(argument.ty)?;
            self.line(&format!("const {of} a{index} = {value};"));
        }
        for (handle, global) in self.of.used(self.info) {
            if global.space == AddressSpace::Private {
                let (of, name) = (self.names().of(global.ty)?, self.of.global_name(handle));
                let value = match global.init {
                    Some(init) => self.constant(init)?,
                    None => format!("{of}{{}}"),
                };
                self.line(&format!("{of} {name} = {value};"));
            }
        }
        self.write_body()
    }

    fn write_body(mut self) -> Result<String, TranslateError> {
        for (handle, variable) in self.function.local_variables.iter() {
            let of = self.names().of(variable.ty)?;
            // Variables without a value are zero. Others get theirs where they are declared, by a
            // statement if it is not constant.
            let value = match variable.init {
                Some(init) => self.value(init)?,
                None => format!("{of}{{}}"),
            };
            let name = local_name(self.function, handle);
            self.line(&format!("{of} {name} = {value};"));
        }
        self.block(&self.function.body)?;
        self.text.push_str("}\n");
        Ok(self.text)
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:1$}{line}", "", 2 * self.depth);
    }

    fn block(&mut self, block: &'a Block) -> Result<(), TranslateError> {
        block.iter().try_for_each(|statement| self.statement(statement))
    }

    /// Writes a block between braces: after `head`, which is empty or ends with a space.
    fn braces(&mut self, head: &str, block: &'a Block) -> Result<(), TranslateError> {
        self.line(&format!("{head}{{"));
        self.depth += 1;
        self.block(block)?;
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement) -> Result<(), TranslateError> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    self.emit(handle)?;
                }
            }
            Statement::Block(block) => self.braces("", block)?,
            Statement::If { condition, accept, reject } => {
                let condition = self.value(*condition)?;
                self.braces(&format!("if ({condition}) "), accept)?;
                if !reject.is_empty() {
                    self.braces("else ", reject)?;
                }
            }
            Statement::Switch { selector, cases } => self.switch(*selector, cases)?,
            Statement::Loop { body, continuing, break_if } => {
                let hint = if self.is_unrolled(body) { "UNROLL " } else { "" };
                self.line(&format!("{hint}for (;;) {{"));
                self.depth += 1;
                let continuing = Continuing { block: continuing, break_if: *break_if };
                let switches = std::mem::take(&mut self.switches);
                self.continuing.push(continuing);
                self.block(body)?;
                self.continuing.pop();
                self.end_of_loop(continuing)?;
                self.switches = switches;
                self.depth -= 1;
                self.line("}");
            }
            Statement::Break => self.line("break;"),
            Statement::Continue => {
                if let Some(&continuing) = self.continuing.last() {
                    if self.switches > 0 && continuing.break_if.is_some() {
                        // The `break` would leave the switch.
                        let what = "`continue` in a `switch` of a loop that ends with `break if`";
                        return Err(TranslateError::unsupported(what));
                    }
                    self.end_of_loop(continuing)?;
                }
                self.line("continue;");
            }
            Statement::Return { value } => {
                let value = value.map(|value| self.value(value)).transpose()?;
                self.line(&format!("return {};", value.unwrap_or_default()));
            }
            // It makes what all threads of the block have written visible to the others, in shared
            // memory and in buffers.
            Statement::ControlBarrier(_) => self.line("__syncthreads();"),
            Statement::MemoryBarrier(_) => self.line("__threadfence_block();"),
            Statement::Store { pointer, value } => {
                self.check_place(*pointer)?;
                let line = format!("{} = {};", self.value(*pointer)?, self.value(*value)?);
                self.line(&line);
            }
            Statement::Call { function, arguments, result } => {
                self.call(*function, arguments, *result)?;
            }
            Statement::Atomic { pointer, fun: AtomicFunction::Min, value, result } => {
                let call =
                    format!("atomicMin(&{}, {})", self.value(*pointer)?, self.value(*value)?);
                match result {
                    Some(result) => self.compute(*result, &call)?,
                    None => self.line(&format!("{call};")),
                }
            }
            other => return Err(TranslateError::unsupported(format!("the statement {other:?}"))),
        }
        Ok(())
    }

    /// Returns whether a loop has a constant bound, and indexes an array of the thread's own. Such
    /// an array is in registers only if all its indices are constant, so the loop is unrolled.
    fn is_unrolled(&self, body: &Block) -> bool {
        // As naga writes `for` and `while`: the loop is left unless its condition holds.
        let condition = body.iter().find_map(|statement| match statement {
            Statement::If { condition, reject, .. } => match &reject[..] {
                [Statement::Break] => Some(*condition),
                _ => None,
            },
            _ => None,
        });
        let expressions = &self.function.expressions;
        let has_constant_bound = condition.is_some_and(|condition| match expressions[condition] {
            Expression::Binary { right, .. } => {
                matches!(expressions[right], Expression::Literal(_) | Expression::Constant(_))
            }
            _ => false,
        });
        has_constant_bound && self.indexes_own_arrays(body)
    }

    /// Returns whether an array of the thread's own is indexed by something that is not constant.
    fn indexes_own_arrays(&self, block: &Block) -> bool {
        block.iter().any(|statement| match statement {
            Statement::Emit(range) => range.clone().any(|handle| {
                matches!(self.function.expressions[handle], Expression::Access { base, .. } if self.is_own(base))
            }),
            Statement::Block(block) => self.indexes_own_arrays(block),
            Statement::If { accept, reject, .. } => {
                self.indexes_own_arrays(accept) || self.indexes_own_arrays(reject)
            }
            Statement::Loop { body, continuing, .. } => {
                self.indexes_own_arrays(body) || self.indexes_own_arrays(continuing)
            }
            Statement::Switch { cases, .. } => {
                cases.iter().any(|case| self.indexes_own_arrays(&case.body))
            }
            _ => false,
        })
    }

    /// Returns whether a place is in a variable of the thread's own.
    fn is_own(&self, place: Handle<Expression>) -> bool {
        match self.function.expressions[place] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                self.is_own(base)
            }
            Expression::LocalVariable(_) => true,
            Expression::GlobalVariable(global) => {
                self.module().global_variables[global].space == AddressSpace::Private
            }
            _ => false,
        }
    }

    /// Writes what a loop does before it begins again. It may be written several times, so its
    /// variables are its own.
    fn end_of_loop(&mut self, end: Continuing<'a>) -> Result<(), TranslateError> {
        if end.block.is_empty() && end.break_if.is_none() {
            return Ok(());
        }
        self.line("{");
        self.depth += 1;
        self.block(end.block)?;
        if let Some(condition) = end.break_if {
            let condition = self.value(condition)?;
            self.line(&format!("if ({condition}) break;"));
        }
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn switch(
        &mut self,
        selector: Handle<Expression>,
        cases: &'a [SwitchCase],
    ) -> Result<(), TranslateError> {
        let selector = self.value(selector)?;
        self.line(&format!("switch ({selector}) {{"));
        self.depth += 1;
        self.switches += 1;
        for case in cases {
            match case.value {
                SwitchValue::I32(value) => self.line(&format!("case {value}:")),
                SwitchValue::U32(value) => self.line(&format!("case {value}u:")),
                SwitchValue::Default => self.line("default:"),
            }
            self.braces("", &case.body)?;
            if !case.fall_through {
                self.line("break;");
            }
        }
        self.switches -= 1;
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn call(
        &mut self,
        function: Handle<Function>,
        arguments: &[Handle<Expression>],
        result: Option<Handle<Expression>>,
    ) -> Result<(), TranslateError> {
        let values = arguments.iter().map(|&argument| self.value(argument));
        let mut values = values.collect::<Result<Vec<_>, _>>()?;
        for (handle, global) in self.of.used(&self.of.info[function]) {
            if self.of.parameter((handle, global), false)?.is_some() {
                values.push(self.of.global_name(handle));
            }
        }
        let call = format!("{}({})", function_name(self.module(), function), values.join(", "));
        match result {
            Some(result) => self.compute(result, &call),
            None => {
                self.line(&format!("{call};"));
                Ok(())
            }
        }
    }

    /// Computes an expression once, unless it is a place in memory.
    fn emit(&mut self, handle: Handle<Expression>) -> Result<(), TranslateError> {
        match self.type_of(handle) {
            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => Ok(()),
            _ => {
                self.computed.remove(&handle);
                let value = self.value(handle)?;
                self.compute(handle, &value)
            }
        }
    }

    /// Writes a variable with the value of an expression.
    fn compute(&mut self, handle: Handle<Expression>, value: &str) -> Result<(), TranslateError> {
        let of = match self.info[handle].ty.handle() {
            Some(named) => self.names().of(named)?,
            None => self.names().of_inner(self.type_of(handle))?,
        };
        let name = match self.function.named_expressions.get(&handle) {
            Some(name) => format!("e{}_{name}", handle.index()),
            None => format!("e{}", handle.index()),
        };
        self.line(&format!("const {of} {name} = {value};"));
        self.computed.insert(handle, name);
        Ok(())
    }
}

/// Returns the name of a function.
fn function_name(module: &Module, handle: Handle<Function>) -> String {
    let name = module.functions[handle].name.as_deref().unwrap_or_default();
    format!("f{}_{name}", handle.index())
}

/// Returns the name of a variable of a function.
pub(super) fn local_name(function: &Function, handle: Handle<LocalVariable>) -> String {
    let name = function.local_variables[handle].name.as_deref().unwrap_or_default();
    format!("v{}_{name}", handle.index())
}

/// Returns the value of a kernel's argument.
fn builtin(binding: Option<&Binding>, threads: u32) -> Result<String, TranslateError> {
    let Some(Binding::BuiltIn(builtin)) = binding else {
        return Err(TranslateError::unsupported("an argument that is not built in"));
    };
    match builtin {
        BuiltIn::WorkGroupId => Ok("U3{blockIdx.x, blockIdx.y, blockIdx.z}".into()),
        BuiltIn::NumWorkGroups => Ok("U3{gridDim.x, gridDim.y, gridDim.z}".into()),
        BuiltIn::LocalInvocationIndex => Ok("threadIdx.x".into()),
        BuiltIn::LocalInvocationId => Ok("U3{threadIdx.x, 0u, 0u}".into()),
        BuiltIn::GlobalInvocationId => {
            Ok(format!("U3{{blockIdx.x * {threads}u + threadIdx.x, blockIdx.y, blockIdx.z}}"))
        }
        other => Err(TranslateError::unsupported(format!("the argument {other:?}"))),
    }
}

//! Expressions.

use super::TranslateError;
use super::function::{FunctionWriter, local_name};
use super::types::{component_name, member_name, shaped_name, vector_name};
use wgpu::naga::{
    BinaryOperator, Expression, Handle, Literal, MathFunction, Scalar, ScalarKind, Type, TypeInner,
    UnaryOperator, VectorSize,
};

impl FunctionWriter<'_> {
    /// Returns the value of an expression, or its place if it is a pointer.
    pub(super) fn value(&self, handle: Handle<Expression>) -> Result<String, TranslateError> {
        if let Some(name) = self.computed.get(&handle) {
            return Ok(name.clone());
        }
        match self.function.expressions[handle] {
            Expression::Literal(literal) => literal_text(literal),
            Expression::Constant(constant) => self.constant(self.module().constants[constant].init),
            Expression::ZeroValue(of) => Ok(format!("{}{{}}", self.names().of(of)?)),
            Expression::Compose { ty, ref components } => {
                let values =
                    components.iter().map(|&part| Ok((self.value(part)?, self.size_of(part))));
                self.compose(ty, values.collect::<Result<_, _>>()?)
            }
            Expression::Splat { size, value } => {
                let scalar = self.scalar_of(value)?;
                splat(size, scalar, &self.value(value)?)
            }
            Expression::FunctionArgument(index) => Ok(format!("a{index}")),
            Expression::GlobalVariable(global) => {
                let variable = &self.module().global_variables[global];
                let name = self.of.global_name(global);
                match self.of.place(variable)? {
                    super::Place::Parameter => Ok(name),
                    super::Place::Shared => Ok(format!("shared.{name}")),
                }
            }
            Expression::LocalVariable(variable) => Ok(local_name(self.function, variable)),
            Expression::Load { pointer } => self.value(pointer),
            Expression::Access { base, index } => {
                let (base_text, index) = (self.value(base)?, self.value(index)?);
                match self.pointed_to(base) {
                    TypeInner::Array { .. } => Ok(format!("{base_text}[{index}]")),
                    TypeInner::Vector { size, scalar }
                        if *size != VectorSize::Tri && scalar.kind != ScalarKind::Bool =>
                    {
                        Ok(format!("component({base_text}, {index})"))
                    }
                    other => Err(TranslateError::unsupported(format!(
                        "an index that is not constant of {other:?}"
                    ))),
                }
            }
            Expression::AccessIndex { base, index } => self.part(base, index),
            Expression::Swizzle { size, vector, pattern } => {
                let scalar = self.scalar_of(vector)?;
                let value = self.value(vector)?;
                let parts = pattern[..size as usize].iter();
                let parts: Vec<_> =
                    parts.map(|&part| format!("{value}.{}", component_name(part as u32))).collect();
                Ok(format!("{}{{{}}}", vector_name(size, scalar)?, parts.join(", ")))
            }
            Expression::Unary { op, expr } => self.unary(op, expr),
            Expression::Binary { op, left, right } => self.binary(op, left, right),
            Expression::Select { condition, accept, reject } => {
                let [condition, accept, reject] = [condition, accept, reject];
                // A single condition may choose between anything.
                if self.size_of(condition).is_none() {
                    let [condition, accept, reject] =
                        [self.value(condition)?, self.value(accept)?, self.value(reject)?];
                    return Ok(format!("({condition} ? {accept} : {reject})"));
                }
                let scalar = self.scalar_of(accept)?;
                self.each(&[condition, accept, reject], scalar, |parts| {
                    Ok(format!("({} ? {} : {})", parts[0], parts[1], parts[2]))
                })
            }
            Expression::Math { fun, arg, arg1, arg2, arg3: None } => {
                let arguments: Vec<_> = [Some(arg), arg1, arg2].into_iter().flatten().collect();
                self.math(fun, &arguments)
            }
            Expression::As { expr, kind, convert } => self.conversion(expr, kind, convert),
            ref other => Err(TranslateError::unsupported(format!("the expression {other:?}"))),
        }
    }

    /// Checks that a pointer's place can be written. The component of a vector with an index that
    /// is not constant is only a value.
    pub(super) fn check_place(&self, pointer: Handle<Expression>) -> Result<(), TranslateError> {
        match self.function.expressions[pointer] {
            Expression::Access { base, .. }
                if matches!(self.pointed_to(base), TypeInner::Vector { .. }) =>
            {
                Err(TranslateError::unsupported(
                    "a component that is written with an index that is not constant",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns a constant of the module.
    pub(super) fn constant(&self, handle: Handle<Expression>) -> Result<String, TranslateError> {
        let inner =
            |handle: Handle<Expression>| self.of.info[handle].inner_with(&self.module().types);
        match self.module().global_expressions[handle] {
            Expression::Literal(literal) => literal_text(literal),
            Expression::Constant(constant) => self.constant(self.module().constants[constant].init),
            Expression::ZeroValue(of) => Ok(format!("{}{{}}", self.names().of(of)?)),
            Expression::Compose { ty, ref components } => {
                let values =
                    components.iter().map(|&part| Ok((self.constant(part)?, shape(inner(part)).0)));
                self.compose(ty, values.collect::<Result<_, _>>()?)
            }
            Expression::Splat { size, value } => {
                let (_, scalar) = shape(inner(value));
                let scalar = scalar.ok_or_else(|| TranslateError::unsupported("a constant"))?;
                splat(size, scalar, &self.constant(value)?)
            }
            ref other => Err(TranslateError::unsupported(format!("the constant {other:?}"))),
        }
    }

    /// Returns a value of parts. The components of vectors become those of a vector.
    fn compose(
        &self,
        of: Handle<Type>,
        parts: Vec<(String, Option<VectorSize>)>,
    ) -> Result<String, TranslateError> {
        let name = self.names().of(of)?;
        let is_vector = matches!(self.module().types[of].inner, TypeInner::Vector { .. });
        let mut all = Vec::new();
        for (part, size) in parts {
            match size {
                Some(size) if is_vector => {
                    all.extend((0..size as u32).map(|i| format!("{part}.{}", component_name(i))));
                }
                _ => all.push(part),
            }
        }
        Ok(match self.module().types[of].inner {
            TypeInner::Array { .. } => format!("{name}{{{{{}}}}}", all.join(", ")),
            _ => format!("{name}{{{}}}", all.join(", ")),
        })
    }

    /// Returns a part of a value or of a place.
    fn part(&self, base: Handle<Expression>, index: u32) -> Result<String, TranslateError> {
        let text = self.value(base)?;
        match self.pointed_to(base) {
            TypeInner::Array { .. } => Ok(format!("{text}[{index}u]")),
            TypeInner::Struct { members, .. } => match members.get(index as usize) {
                Some(member) => Ok(format!("{text}.{}", member_name(index as usize, member))),
                None => Err(TranslateError::unsupported("a member that is not there")),
            },
            TypeInner::Vector { .. } => Ok(format!("{text}.{}", component_name(index))),
            other => Err(TranslateError::unsupported(format!("a part of {other:?}"))),
        }
    }

    /// Returns the type of an expression, or of what it points to.
    fn pointed_to(&self, handle: Handle<Expression>) -> &TypeInner {
        match self.type_of(handle) {
            TypeInner::Pointer { base, .. } => &self.module().types[*base].inner,
            other => other,
        }
    }

    /// Returns the size of a vector. `None` for others.
    fn size_of(&self, handle: Handle<Expression>) -> Option<VectorSize> {
        shape(self.type_of(handle)).0
    }

    /// Returns the type of a number, or of a vector's components.
    fn scalar_of(&self, handle: Handle<Expression>) -> Result<Scalar, TranslateError> {
        let inner = self.type_of(handle);
        shape(inner)
            .1
            .ok_or_else(|| TranslateError::unsupported(format!("arithmetic of {inner:?}")))
    }

    /// Applies a function to each component of vectors; numbers are the same for all components.
    /// Without vectors, applies it once.
    fn each(
        &self,
        arguments: &[Handle<Expression>],
        result: Scalar,
        apply: impl Fn(&[String]) -> Result<String, TranslateError>,
    ) -> Result<String, TranslateError> {
        let values = arguments.iter().map(|&argument| self.value(argument));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let size = arguments.iter().find_map(|&argument| self.size_of(argument));
        let Some(size) = size else { return apply(&values) };
        let mut components = Vec::new();
        for index in 0..size as u32 {
            let parts = values.iter().zip(arguments).map(|(value, &argument)| {
                match self.size_of(argument) {
                    Some(_) => format!("{value}.{}", component_name(index)),
                    None => value.clone(),
                }
            });
            components.push(apply(&parts.collect::<Vec<_>>())?);
        }
        Ok(format!("{}{{{}}}", shaped_name(Some(size), result)?, components.join(", ")))
    }

    fn unary(
        &self,
        op: UnaryOperator,
        operand: Handle<Expression>,
    ) -> Result<String, TranslateError> {
        let scalar = self.scalar_of(operand)?;
        self.each(&[operand], scalar, |parts| {
            let x = &parts[0];
            Ok(match (op, scalar.kind) {
                (UnaryOperator::Negate, ScalarKind::Sint) => format!("i32(0u - u32({x}))"),
                (UnaryOperator::Negate, _) => format!("(-{x})"),
                (UnaryOperator::LogicalNot, _) => format!("(!{x})"),
                (UnaryOperator::BitwiseNot, _) => format!("(~{x})"),
            })
        })
    }

    fn binary(
        &self,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Result<String, TranslateError> {
        use BinaryOperator as Op;
        let scalar = self.scalar_of(left)?;
        let is_comparison = matches!(
            op,
            Op::Equal | Op::NotEqual | Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual
        );
        let result = if is_comparison { Scalar::BOOL } else { scalar };
        // Division by a number that is known needs no check.
        let divisor = match self.function.expressions[right] {
            Expression::Literal(Literal::U32(divisor)) => divisor,
            _ => 0,
        };
        let shift = match self.function.expressions[right] {
            Expression::Literal(Literal::U32(shift)) if shift < 32 => Some(shift),
            _ => None,
        };
        self.each(&[left, right], result, |parts| {
            let (a, b) = (&parts[0], &parts[1]);
            let plain = |sign: &str| Ok(format!("({a} {sign} {b})"));
            let wrapping = |sign: &str| Ok(format!("i32(u32({a}) {sign} u32({b}))"));
            let call = |name: &str| Ok(format!("{name}({a}, {b})"));
            let amount = match shift {
                Some(shift) => format!("{shift}u"),
                None => format!("({b} & 31u)"),
            };
            match (op, scalar.kind) {
                (Op::Add, ScalarKind::Float) => call("__fadd_rn"),
                (Op::Subtract, ScalarKind::Float) => call("__fsub_rn"),
                (Op::Multiply, ScalarKind::Float) => call("__fmul_rn"),
                (Op::Divide, ScalarKind::Float) => call("__fdiv_rn"),
                (Op::Add, ScalarKind::Uint) => plain("+"),
                (Op::Subtract, ScalarKind::Uint) => plain("-"),
                (Op::Multiply, ScalarKind::Uint) => plain("*"),
                (Op::Divide, ScalarKind::Uint) if divisor != 0 => plain("/"),
                (Op::Modulo, ScalarKind::Uint) if divisor != 0 => plain("%"),
                (Op::Add, ScalarKind::Sint) => wrapping("+"),
                (Op::Subtract, ScalarKind::Sint) => wrapping("-"),
                (Op::Multiply, ScalarKind::Sint) => wrapping("*"),
                (Op::Divide, ScalarKind::Uint | ScalarKind::Sint) => call("quotient"),
                (Op::Modulo, ScalarKind::Uint | ScalarKind::Sint) => call("rest"),
                (Op::Equal, _) => plain("=="),
                (Op::NotEqual, _) => plain("!="),
                (Op::Less, _) => plain("<"),
                (Op::LessEqual, _) => plain("<="),
                (Op::Greater, _) => plain(">"),
                (Op::GreaterEqual, _) => plain(">="),
                // C++ computes them as `int`.
                (Op::And, ScalarKind::Bool) => Ok(format!("bool({a} & {b})")),
                (Op::InclusiveOr, ScalarKind::Bool) => Ok(format!("bool({a} | {b})")),
                (Op::And, ScalarKind::Uint | ScalarKind::Sint) => plain("&"),
                (Op::InclusiveOr, ScalarKind::Uint | ScalarKind::Sint) => plain("|"),
                (Op::ExclusiveOr, ScalarKind::Uint | ScalarKind::Sint) => plain("^"),
                (Op::LogicalAnd, _) => plain("&&"),
                (Op::LogicalOr, _) => plain("||"),
                (Op::ShiftLeft, ScalarKind::Uint) => Ok(format!("({a} << {amount})")),
                (Op::ShiftLeft, ScalarKind::Sint) => Ok(format!("i32(u32({a}) << {amount})")),
                (Op::ShiftRight, ScalarKind::Uint | ScalarKind::Sint) => {
                    Ok(format!("({a} >> {amount})"))
                }
                (op, kind) => {
                    Err(TranslateError::unsupported(format!("the operation {op:?} of {kind:?}")))
                }
            }
        })
    }

    fn math(
        &self,
        function: MathFunction,
        arguments: &[Handle<Expression>],
    ) -> Result<String, TranslateError> {
        use MathFunction as Math;
        let Some(&first) = arguments.first() else {
            return Err(TranslateError::unsupported("a function without arguments"));
        };
        let scalar = self.scalar_of(first)?;
        self.each(arguments, scalar, |parts| {
            Ok(match (function, scalar.kind, parts) {
                (Math::Abs, ScalarKind::Float, [x]) => format!("fabsf({x})"),
                (Math::Round, ScalarKind::Float, [x]) => format!("rintf({x})"),
                (Math::Sqrt, ScalarKind::Float, [x]) => format!("__fsqrt_rn({x})"),
                (Math::Fma, ScalarKind::Float, [x, y, z]) => format!("__fmaf_rn({x}, {y}, {z})"),
                (Math::Min, _, [x, y]) => format!("smaller({x}, {y})"),
                (Math::Max, _, [x, y]) => format!("larger({x}, {y})"),
                (Math::Clamp, _, [x, low, high]) => format!("smaller(larger({x}, {low}), {high})"),
                (function, kind, _) => {
                    let what = format!("the function {function:?} of {kind:?}");
                    return Err(TranslateError::unsupported(what));
                }
            })
        })
    }

    /// Returns a conversion, or the same bits as another type if `convert` is `None`.
    fn conversion(
        &self,
        operand: Handle<Expression>,
        kind: ScalarKind,
        convert: Option<u8>,
    ) -> Result<String, TranslateError> {
        use ScalarKind::{Bool, Float, Sint, Uint};
        let from = self.scalar_of(operand)?;
        let result = Scalar { kind, width: convert.unwrap_or(from.width) };
        self.each(&[operand], result, |parts| {
            let x = &parts[0];
            Ok(match (from.kind, kind, convert) {
                (from, kind, _) if from == kind => x.clone(),
                (Float, Uint, None) => format!("__float_as_uint({x})"),
                (Float, Sint, None) => format!("__float_as_int({x})"),
                (Uint, Float, None) => format!("__uint_as_float({x})"),
                (Sint, Float, None) => format!("__int_as_float({x})"),
                (Float, Uint, Some(4)) => format!("__float2uint_rz({x})"),
                (Float, Sint, Some(4)) => format!("__float2int_rz({x})"),
                (Uint, Float, Some(4)) => format!("__uint2float_rn({x})"),
                (Sint, Float, Some(4)) => format!("__int2float_rn({x})"),
                (Uint | Bool, Sint, _) => format!("i32({x})"),
                (Sint | Bool, Uint, _) => format!("u32({x})"),
                (Bool, Float, Some(4)) => format!("({x} ? 1.0f : 0.0f)"),
                (Uint | Sint, Bool, _) => format!("({x} != 0)"),
                (Float, Bool, _) => format!("({x} != 0.0f)"),
                _ => {
                    let what = format!("a conversion of {:?} to {kind:?}", from.kind);
                    return Err(TranslateError::unsupported(what));
                }
            })
        })
    }
}

/// Returns the size of a vector, and the type of a number or of a vector's components.
fn shape(inner: &TypeInner) -> (Option<VectorSize>, Option<Scalar>) {
    match *inner {
        TypeInner::Scalar(scalar) => (None, Some(scalar)),
        TypeInner::Vector { size, scalar } => (Some(size), Some(scalar)),
        _ => (None, None),
    }
}

fn splat(size: VectorSize, scalar: Scalar, value: &str) -> Result<String, TranslateError> {
    Ok(format!("{}{{{}}}", vector_name(size, scalar)?, vec![value; size as usize].join(", ")))
}

/// Returns a number with all its bits.
fn literal_text(literal: Literal) -> Result<String, TranslateError> {
    Ok(match literal {
        Literal::F32(value) if !value.is_finite() => {
            format!("__uint_as_float({:#x}u)", value.to_bits())
        }
        // The shortest digits that round to the number. A negative one is no operand of a sign.
        Literal::F32(value) if value.is_sign_negative() => format!("({value:e}f)"),
        Literal::F32(value) => format!("{value:e}f"),
        Literal::U32(value) => format!("{value}u"),
        Literal::I32(i32::MIN) => "(-2147483647 - 1)".into(),
        Literal::I32(value) if value < 0 => format!("({value})"),
        Literal::I32(value) => value.to_string(),
        Literal::Bool(value) => value.to_string(),
        other => return Err(TranslateError::unsupported(format!("the number {other:?}"))),
    })
}

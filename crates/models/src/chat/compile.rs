//! Compiles a template to instructions that check every value they make.
//!
//! minijinja limits steps and nesting, but neither the length of an operator chain, which its
//! compiler follows recursively, nor the size of values. So the tokens are counted before they are
//! parsed, and the compiled instructions are rewritten: an instruction that makes a value is
//! followed by a call of [`ACCEPT`], one that reads a long value is preceded by one of [`READ`].
//! The names of these functions contain a space, so no variable of a template can hide them.
//!
//! This needs minijinja's `unstable_machinery`; `Cargo.toml` therefore pins its version.

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};
use std::collections::BTreeMap;

/// Function that checks and returns a value that was made.
pub(super) const ACCEPT: &str = "accept value";
/// Function that charges the reading of a value.
pub(super) const READ: &str = "read value";
/// Function that charges the reading of a string; other values are free.
pub(super) const READ_TEXT: &str = "read text";
/// Function for the operator `*`.
pub(super) const MULTIPLY: &str = "multiply values";
/// Function for assignments to an attribute: value, object, name.
pub(super) const SET_ATTRIBUTE: &str = "set attribute";

/// A variable with the value 1. See [`without_constant_products`].
pub(super) const ONE: &str = "pellucid_one";

/// Limit of a template's length. Real ones have at most some 60 KB.
pub(super) const MAX_SOURCE_BYTES: usize = 256 << 10;
/// Limit of the tokens of one `{{ … }}` or `{% … %}`.
const MAX_TAG_TOKENS: usize = 1000;
/// Limit of the number of `elif` of a template; minijinja's parser nests them.
const MAX_ELIFS: usize = 500;

/// A compiled template: its instructions, and those of its blocks.
pub(super) struct Compiled<'s> {
    pub instructions: Instructions<'s>,
    pub blocks: BTreeMap<&'s str, Instructions<'s>>,
}

/// Compiles a source that [`checked_source`] returned.
pub(super) fn compile<'s>(source: &'s str, name: &'s str, syntax: SyntaxConfig) -> Result<Compiled<'s>, Error> {
    let tree = parse(source, name, syntax)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(name, block)| (name, with_checks(&block))).collect();
    Ok(Compiled { instructions: with_checks(&instructions), blocks })
}

/// Counts the tokens of each tag, and returns the source without constant products.
pub(super) fn checked_source(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let refused =
        |line: u16, problem: String| Err(Error::new(ErrorKind::SyntaxError, format!("{problem} (line {line})")));
    let (mut in_tag, mut elifs, mut products) = (0, 0, Vec::new());
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        in_tag += 1;
        match token {
            Token::VariableStart | Token::BlockStart | Token::TemplateData(_) => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Mul => products.push(span.end_offset as usize),
            _ => {}
        }
        if in_tag > MAX_TAG_TOKENS {
            return refused(span.start_line, format!("a tag has more than {MAX_TAG_TOKENS} tokens"));
        }
        if elifs > MAX_ELIFS {
            return refused(span.start_line, format!("there are more than {MAX_ELIFS} `elif`"));
        }
    }
    Ok(without_constant_products(source, &products))
}

/// Replaces each `a * b` by `a * one * b`: minijinja evaluates products of constants when it
/// compiles, where their size cannot be checked. `ends` are the offsets after each `*`.
fn without_constant_products(source: &str, ends: &[usize]) -> String {
    let mut result = String::with_capacity(source.len() + ends.len() * (ONE.len() + 2));
    let mut copied = 0;
    for &end in ends {
        result.push_str(&source[copied..end]);
        result.push_str(ONE);
        result.push('*');
        copied = end;
    }
    result.push_str(&source[copied..]);
    result
}

/// Returns the instructions with checks, and with jumps to the same instructions as before.
fn with_checks<'s>(original: &Instructions<'s>) -> Instructions<'s> {
    let mut result = Instructions::new(original.name(), original.source());
    // The new index of each instruction, or of the first check before it.
    let (mut moved, mut count) = (Vec::new(), 0);
    for index in 0.. {
        let Some(instruction) = original.get(index) else { break };
        moved.push(count);
        let line = original.get_line(index).unwrap_or_default().min(usize::from(u16::MAX)) as u16;
        for instruction in with_check(instruction.clone()) {
            count = result.add_with_line(instruction, line) + 1;
        }
    }
    moved.push(count);
    for index in 0..count {
        if let Some(target) = result.get_mut(index).and_then(jump_target) {
            *target = moved.get(*target as usize).copied().unwrap_or(*target);
        }
    }
    result
}

/// The index of another instruction that an instruction contains.
fn jump_target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// An instruction with the checks before and after it.
fn with_check(instruction: Instruction<'_>) -> Vec<Instruction<'_>> {
    use Instruction as I;
    let accept = || I::CallFunction(ACCEPT, Some(1));
    // Each leaves the stack as it was.
    let read_top = |function| [I::DupTop, I::CallFunction(function, Some(1)), I::DiscardTop];
    match instruction {
        // Printed by the formatter, which charges it.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(text)), I::Emit],
        I::Mul => vec![I::CallFunction(MULTIPLY, Some(2)), accept()],
        I::SetAttr(name) => {
            vec![I::LoadConst(Value::from(name)), I::CallFunction(SET_ATTRIBUTE, Some(3)), I::DiscardTop]
        }
        I::GetItem => {
            let mut checked = vec![I::Swap];
            checked.extend(read_top(READ_TEXT));
            checked.extend([I::Swap, I::GetItem]);
            checked
        }
        I::Add
        | I::StringConcat
        | I::Slice
        | I::BuildList(_)
        | I::BuildTuple(_)
        | I::BuildMap(_)
        | I::CallFunction(..)
        | I::CallMethod(..)
        | I::CallObject(_)
        | I::ApplyFilter(..)
        | I::EndCapture => vec![instruction, accept()],
        I::Eq
        | I::Ne
        | I::Gt
        | I::Gte
        | I::Lt
        | I::Lte
        | I::In
        | I::CompareAndPreserve(_)
        | I::PerformTest(..)
        | I::UnpackList(_) => {
            let mut checked = Vec::from(read_top(READ));
            checked.push(instruction);
            checked
        }
        other => vec![other],
    }
}

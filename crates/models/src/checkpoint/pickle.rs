//! A restricted pickle interpreter: it supports only what a state dict of tensors needs.
//!
//! A pickle is a program that imports functions and calls them. Here an import must be on a fixed
//! allowlist, calls only build tensor descriptions, and every other name or opcode is an error, so
//! no code is executed. Objects refer to each other by index, and opcodes and dimensions are
//! limited, so time and memory are linear in the file size, however deeply it is nested.

use super::StoredType;
use super::header::FileFault;
use crate::escape;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A tensor as described by the pickle.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorDescription {
    pub storage: Storage,
    /// Offset of the first element in the storage, in elements.
    pub offset: u64,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
}

/// A storage: a flat array in its own archive member.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Storage {
    pub dtype: StoredType,
    pub key: Rc<str>,
    pub elements: u64,
}

#[derive(Clone, Debug)]
enum Value {
    /// Floats, booleans, None and other values that are not needed.
    Other,
    Int(i64),
    Text(Rc<str>),
    Tuple(usize),
    List,
    Dict(usize),
    Function(Function),
    StorageType(StoredType),
    Storage(Storage),
    Tensor(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    OrderedDict,
    Tensor,
    Parameter,
}

/// PyTorch's storage classes.
const STORAGES: &[(&str, StoredType)] = &[
    ("FloatStorage", StoredType::F32),
    ("HalfStorage", StoredType::F16),
    ("BFloat16Storage", StoredType::Bf16),
    ("DoubleStorage", StoredType::F64),
    ("LongStorage", StoredType::I64),
    ("IntStorage", StoredType::I32),
    ("ShortStorage", StoredType::I16),
    ("CharStorage", StoredType::I8),
    ("ByteStorage", StoredType::U8),
    ("BoolStorage", StoredType::Bool),
];

/// The maximum number of dimensions, as in PyTorch.
const MAX_DIMS: usize = 64;
/// The maximum number of dimensions of all tensors: a pickle can name one tensor many times.
const MAX_ALL_DIMS: usize = 4 << 20;
/// The maximum number of opcodes; a tensor takes about 40. Each may allocate an object, which is
/// much larger than its opcode.
const MAX_STEPS: usize = 8 << 20;
/// Characters of a name that an error shows.
const MAX_SHOWN: usize = 200;

const UNSAFE: &str = "a pickle can execute code, and this one does more than describe tensors; if you trust its origin, \
                      convert it to safetensors with PyTorch";
const DAMAGED: &str = "the file is damaged or was not written by PyTorch: download it again";

fn refused(problem: impl Into<String>) -> FileFault {
    FileFault { problem: problem.into(), remedy: UNSAFE }
}

fn damaged(problem: impl Into<String>) -> FileFault {
    FileFault { problem: problem.into(), remedy: DAMAGED }
}

/// A tensor of a pickle, under its name.
pub(super) type NamedTensor = (Rc<str>, Rc<TensorDescription>);

/// Reads a pickled dictionary; returns its tensors in file order. Names and shapes are shared, not
/// copied: with two bytes, a pickle can refer to any earlier object.
pub(super) fn tensors(program: &[u8]) -> Result<Vec<NamedTensor>, FileFault> {
    let mut machine = Machine { rest: program, ..Machine::default() };
    let Value::Dict(mut top) = machine.run()? else { return Err(damaged("the pickle does not contain a dictionary")) };
    // Training frameworks nest the tensors under `state_dict`.
    if let Some(Value::Dict(inner)) = machine.get(top, "state_dict") {
        top = *inner;
    }
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for (name, value) in &machine.dicts[top] {
        let (Value::Text(name), Value::Tensor(tensor)) = (name, value) else { continue };
        if !names.insert(Rc::clone(name)) {
            let name = escape::text(name, MAX_SHOWN);
            return Err(damaged(format!("tensor `{name}` occurs twice")));
        }
        machine.dimensions += machine.tensors[*tensor].shape.len();
        tensors.push((Rc::clone(name), Rc::clone(&machine.tensors[*tensor])));
    }
    machine.check_dimensions()?;
    Ok(tensors)
}

#[derive(Default)]
struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
    tuples: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    tensors: Vec<Rc<TensorDescription>>,
    /// Dimensions of all tensors.
    dimensions: usize,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Value, FileFault> {
        for _ in 0..MAX_STEPS {
            let code = self.bytes(1)?[0];
            match code {
                0x80 => drop(self.bytes(1)?),
                0x95 => drop(self.bytes(8)?),
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'N' | 0x88 | 0x89 => self.stack.push(Value::Other),
                b'G' => {
                    self.bytes(8)?;
                    self.stack.push(Value::Other);
                }
                b'K' => self.int(1, false)?,
                b'M' => self.int(2, false)?,
                b'J' => self.int(4, true)?,
                0x8A => {
                    let length = self.bytes(1)?[0];
                    self.int(usize::from(length), true)?;
                }
                b'X' => self.text(4)?,
                0x8C | b'U' => self.text(1)?,
                0x8D => self.text(8)?,
                b'T' => self.text(4)?,
                b')' => self.tuple(0)?,
                0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push_tuple(items);
                }
                b']' => self.stack.push(Value::List),
                b'a' => drop(self.pop()?),
                b'e' => drop(self.pop_to_mark()?),
                b'}' => self.dict(),
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(vec![key, value])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    self.set(items)?;
                }
                b'q' => self.put(1)?,
                b'r' => self.put(4)?,
                0x94 => {
                    let (slot, top) = (self.memo.len() as u64, self.top()?);
                    self.memo.insert(slot, top);
                }
                b'h' => self.fetch(1)?,
                b'j' => self.fetch(4)?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(&module, &name)?;
                }
                0x93 => match (self.pop()?, self.pop()?) {
                    (Value::Text(name), Value::Text(module)) => self.global(&module, &name)?,
                    _ => return Err(damaged("a name in the pickle is not a string")),
                },
                b'Q' => self.storage()?,
                b'R' => self.call()?,
                // Attributes of an OrderedDict (`_metadata`) are not needed.
                b'b' => {
                    self.pop()?;
                    if !matches!(self.top()?, Value::Dict(_)) {
                        return Err(refused("the pickle sets attributes of an object"));
                    }
                }
                other => return Err(refused(format!("the pickle contains the opcode {:?}", char::from(other)))),
            }
        }
        Err(damaged(format!("the pickle has more than {MAX_STEPS} opcodes")))
    }

    fn check_dimensions(&self) -> Result<(), FileFault> {
        match self.dimensions > MAX_ALL_DIMS {
            true => Err(damaged(format!("its tensors have more than {MAX_ALL_DIMS} dimensions in all"))),
            false => Ok(()),
        }
    }

    fn bytes(&mut self, count: usize) -> Result<&[u8], FileFault> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| damaged("the pickle is truncated"))?;
        self.rest = rest;
        Ok(head)
    }

    /// Reads a little-endian unsigned integer of `size` bytes, at most eight.
    fn unsigned(&mut self, size: usize) -> Result<u64, FileFault> {
        Ok(self.bytes(size)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn int(&mut self, size: usize, signed: bool) -> Result<(), FileFault> {
        if size > 8 {
            return Err(damaged("an integer in the pickle has more than 8 bytes"));
        }
        let number = self.unsigned(size)?;
        let unused = 64 - 8 * size as u32;
        // Shifting up and arithmetically down again extends the sign.
        let value = if signed && size > 0 { ((number << unused) as i64) >> unused } else { number as i64 };
        self.stack.push(Value::Int(value));
        Ok(())
    }

    fn text(&mut self, size: usize) -> Result<(), FileFault> {
        let length = usize::try_from(self.unsigned(size)?).map_err(|_| damaged("the pickle is truncated"))?;
        let text =
            std::str::from_utf8(self.bytes(length)?).map_err(|_| damaged("a string in the pickle is not UTF-8"))?;
        let text = Value::Text(text.into());
        self.stack.push(text);
        Ok(())
    }

    fn line(&mut self) -> Result<String, FileFault> {
        let end = self.rest.iter().take(1024).position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| damaged("a name in the pickle is not terminated"))?;
        let line = String::from_utf8_lossy(self.bytes(end)?).into_owned();
        self.bytes(1)?;
        Ok(line)
    }

    fn pop(&mut self) -> Result<Value, FileFault> {
        // Values below the last mark belong to an enclosing object.
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => self.stack.pop().ok_or_else(empty),
            false => Err(empty()),
        }
    }

    fn top(&self) -> Result<Value, FileFault> {
        self.stack.last().cloned().ok_or_else(empty)
    }

    /// Pops all values above the last mark.
    fn pop_to_mark(&mut self) -> Result<Vec<Value>, FileFault> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or_else(empty)?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, count: usize) -> Result<(), FileFault> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push_tuple(items);
        Ok(())
    }

    fn push_tuple(&mut self, items: Vec<Value>) {
        self.tuples.push(items);
        self.stack.push(Value::Tuple(self.tuples.len() - 1));
    }

    fn dict(&mut self) {
        self.dicts.push(Vec::new());
        self.stack.push(Value::Dict(self.dicts.len() - 1));
    }

    fn set(&mut self, items: Vec<Value>) -> Result<(), FileFault> {
        let Value::Dict(dict) = self.top()? else {
            return Err(damaged("the pickle adds items to an object that is not a dictionary"));
        };
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            self.dicts[dict].push((key, value));
        }
        Ok(())
    }

    fn get(&self, dict: usize, key: &str) -> Option<&Value> {
        self.dicts[dict]
            .iter()
            .find(|(name, _)| matches!(name, Value::Text(name) if **name == *key))
            .map(|(_, value)| value)
    }

    fn put(&mut self, size: usize) -> Result<(), FileFault> {
        let (slot, top) = (self.unsigned(size)?, self.top()?);
        self.memo.insert(slot, top);
        Ok(())
    }

    fn fetch(&mut self, size: usize) -> Result<(), FileFault> {
        let slot = self.unsigned(size)?;
        let value = self.memo.get(&slot).cloned().ok_or_else(|| damaged("the pickle refers to an empty memo slot"))?;
        self.stack.push(value);
        Ok(())
    }

    /// Pushes an imported name; only the names listed here are allowed.
    fn global(&mut self, module: &str, name: &str) -> Result<(), FileFault> {
        let storage = STORAGES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| Value::StorageType(*dtype));
        let value = match (module, name) {
            ("collections", "OrderedDict") => Value::Function(Function::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Value::Function(Function::Tensor),
            ("torch._utils", "_rebuild_parameter") => Value::Function(Function::Parameter),
            ("torch", _) if storage.is_some() => storage.unwrap_or(Value::Other),
            _ => {
                let name: String = format!("{module}.{name}").escape_debug().take(200).collect();
                return Err(refused(format!("the pickle imports `{name}`, which tensors do not need")));
            }
        };
        self.stack.push(value);
        Ok(())
    }

    /// A persistent id, which refers to a storage: `("storage", type, key, device, elements)`.
    fn storage(&mut self) -> Result<(), FileFault> {
        let wrong = || damaged("a persistent id in the pickle is not a storage");
        let Value::Tuple(tuple) = self.pop()? else { return Err(wrong()) };
        let [Value::Text(kind), Value::StorageType(dtype), Value::Text(key), _, Value::Int(elements)] =
            &self.tuples[tuple][..]
        else {
            return Err(wrong());
        };
        let elements = u64::try_from(*elements).ok().filter(|_| **kind == *"storage").ok_or_else(wrong)?;
        let storage = Storage { dtype: *dtype, key: key.clone(), elements };
        self.stack.push(Value::Storage(storage));
        Ok(())
    }

    fn call(&mut self) -> Result<(), FileFault> {
        let wrong = || damaged("the pickle calls a tensor constructor with invalid arguments");
        let (Value::Tuple(arguments), Value::Function(function)) = (self.pop()?, self.pop()?) else {
            return Err(refused("the pickle calls an object that is not a known function"));
        };
        let arguments = &self.tuples[arguments];
        match (function, &arguments[..]) {
            (Function::OrderedDict, []) => self.dict(),
            (Function::Parameter, [Value::Tensor(tensor), ..]) => {
                let tensor = Value::Tensor(*tensor);
                self.stack.push(tensor);
            }
            (
                Function::Tensor,
                [Value::Storage(storage), Value::Int(offset), Value::Tuple(shape), Value::Tuple(strides), ..],
            ) => {
                let sizes = |tuple: usize| -> Option<Vec<u64>> {
                    let size = |value: &Value| match value {
                        Value::Int(size) => u64::try_from(*size).ok(),
                        _ => None,
                    };
                    let sizes = self.tuples.get(tuple).filter(|sizes| sizes.len() <= MAX_DIMS)?;
                    sizes.iter().map(size).collect()
                };
                let (shape, strides) = (sizes(*shape).ok_or_else(wrong)?, sizes(*strides).ok_or_else(wrong)?);
                let offset = u64::try_from(*offset).map_err(|_| wrong())?;
                let tensor = TensorDescription { storage: storage.clone(), offset, shape, strides };
                self.dimensions += tensor.shape.len();
                self.check_dimensions()?;
                self.tensors.push(Rc::new(tensor));
                self.stack.push(Value::Tensor(self.tensors.len() - 1));
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

fn empty() -> FileFault {
    damaged("the pickle pops from an empty stack")
}

//! The part of pickle's language that a dictionary of tensors needs, read by a machine that can do nothing else.
//!
//! A pickle is a program that names functions and calls them. Here names are looked up in a list of five kinds, calls of them only
//! describe tensors, and everything else (another name, another instruction) ends the reading. No object refers to another except by
//! number, so no file, however it is nested, costs more than its own length.

use super::StoredType;
use super::header::Fault;
use std::collections::HashMap;
use std::rc::Rc;

/// A tensor as the pickle describes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Described {
    pub storage: Storage,
    /// Elements before its first one.
    pub offset: u64,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
}

/// Numbers in a file of their own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Storage {
    pub dtype: StoredType,
    pub key: Rc<str>,
    pub elements: u64,
}

#[derive(Clone, Debug)]
enum Value {
    /// Numbers, truth values and whatever else is of no use here.
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

/// Torch's names for types of numbers.
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

/// The most axes of a tensor, as in torch itself.
const MOST_AXES: usize = 64;

const UNSAFE: &str = "a pickle is a program, and this one wants more than to describe tensors; do not load it elsewhere unless you \
                      trust its origin, and convert it to safetensors there";
const DAMAGED: &str = "the file is damaged or was not written by torch: download it again";

fn refused(what: impl Into<String>) -> Fault {
    Fault { problem: what.into(), remedy: UNSAFE }
}

fn damaged(what: impl Into<String>) -> Fault {
    Fault { problem: what.into(), remedy: DAMAGED }
}

/// Reads a pickled dictionary; its tensors in the order of the file.
pub(super) fn tensors(program: &[u8]) -> Result<Vec<(String, Described)>, Fault> {
    let mut machine = Machine { rest: program, ..Machine::default() };
    let Value::Dict(mut top) = machine.run()? else { return Err(damaged("the pickle holds no dictionary")) };
    // Training frameworks keep the tensors one level down.
    if let Some(Value::Dict(inner)) = machine.get(top, "state_dict") {
        top = *inner;
    }
    let named = machine.dicts[top].iter().filter_map(|(name, value)| match (name, value) {
        (Value::Text(name), Value::Tensor(tensor)) => Some((name.to_string(), machine.tensors[*tensor].clone())),
        _ => None,
    });
    Ok(named.collect())
}

#[derive(Default)]
struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
    tuples: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    tensors: Vec<Described>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Value, Fault> {
        loop {
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
                    let items = self.marked()?;
                    self.push_tuple(items);
                }
                b']' => self.stack.push(Value::List),
                b'a' => drop(self.pop()?),
                b'e' => drop(self.marked()?),
                b'}' => self.dict(),
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(vec![key, value])?;
                }
                b'u' => {
                    let items = self.marked()?;
                    self.set(items)?;
                }
                b'q' => self.put(1)?,
                b'r' => self.put(4)?,
                0x94 => {
                    let (place, top) = (self.memo.len() as u64, self.top()?);
                    self.memo.insert(place, top);
                }
                b'h' => self.fetch(1)?,
                b'j' => self.fetch(4)?,
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.global(&module, &name)?;
                }
                0x93 => match (self.pop()?, self.pop()?) {
                    (Value::Text(name), Value::Text(module)) => self.global(&module, &name)?,
                    _ => return Err(damaged("a name in the pickle is not text")),
                },
                b'Q' => self.storage()?,
                b'R' => self.call()?,
                // The attributes of an ordered dictionary (its versions) are of no use.
                b'b' => {
                    self.pop()?;
                    if !matches!(self.top()?, Value::Dict(_)) {
                        return Err(refused("the pickle sets the attributes of an object"));
                    }
                }
                other => return Err(refused(format!("the pickle holds the instruction {:?}", char::from(other)))),
            }
        }
    }

    fn bytes(&mut self, count: usize) -> Result<&[u8], Fault> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| damaged("the pickle breaks off"))?;
        self.rest = rest;
        Ok(head)
    }

    /// An unsigned number of so many bytes, at most eight.
    fn number(&mut self, size: usize) -> Result<u64, Fault> {
        Ok(self.bytes(size)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn int(&mut self, size: usize, signed: bool) -> Result<(), Fault> {
        if size > 8 {
            return Err(damaged("a number in the pickle is too long"));
        }
        let number = self.number(size)?;
        let unused = 64 - 8 * size as u32;
        // Shifted up and down again, the highest bit fills the unused ones.
        let value = if signed && size > 0 { ((number << unused) as i64) >> unused } else { number as i64 };
        self.stack.push(Value::Int(value));
        Ok(())
    }

    fn text(&mut self, size: usize) -> Result<(), Fault> {
        let length = usize::try_from(self.number(size)?).map_err(|_| damaged("the pickle breaks off"))?;
        let text =
            std::str::from_utf8(self.bytes(length)?).map_err(|_| damaged("a text in the pickle is not UTF-8"))?;
        let text = Value::Text(text.into());
        self.stack.push(text);
        Ok(())
    }

    fn line(&mut self) -> Result<String, Fault> {
        let end = self.rest.iter().take(1024).position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| damaged("a name in the pickle has no end"))?;
        let line = String::from_utf8_lossy(self.bytes(end)?).into_owned();
        self.bytes(1)?;
        Ok(line)
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        // What lies before a mark belongs to somebody else.
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > floor {
            true => self.stack.pop().ok_or_else(empty),
            false => Err(empty()),
        }
    }

    fn top(&self) -> Result<Value, Fault> {
        self.stack.last().cloned().ok_or_else(empty)
    }

    /// Everything since the last mark.
    fn marked(&mut self) -> Result<Vec<Value>, Fault> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or_else(empty)?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, count: usize) -> Result<(), Fault> {
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

    fn set(&mut self, items: Vec<Value>) -> Result<(), Fault> {
        let Value::Dict(dict) = self.top()? else {
            return Err(damaged("the pickle fills something that is no dictionary"));
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

    fn put(&mut self, size: usize) -> Result<(), Fault> {
        let (place, top) = (self.number(size)?, self.top()?);
        self.memo.insert(place, top);
        Ok(())
    }

    fn fetch(&mut self, size: usize) -> Result<(), Fault> {
        let place = self.number(size)?;
        let value = self.memo.get(&place).cloned().ok_or_else(|| damaged("the pickle refers to nothing"))?;
        self.stack.push(value);
        Ok(())
    }

    /// The only names that mean anything.
    fn global(&mut self, module: &str, name: &str) -> Result<(), Fault> {
        let storage = STORAGES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| Value::StorageType(*dtype));
        let value = match (module, name) {
            ("collections", "OrderedDict") => Value::Function(Function::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Value::Function(Function::Tensor),
            ("torch._utils", "_rebuild_parameter") => Value::Function(Function::Parameter),
            ("torch", _) if storage.is_some() => storage.unwrap_or(Value::Other),
            _ => {
                let name: String = format!("{module}.{name}").escape_debug().take(200).collect();
                return Err(refused(format!("the pickle names `{name}`, which is no part of a tensor")));
            }
        };
        self.stack.push(value);
        Ok(())
    }

    /// A reference to numbers outside the pickle: `("storage", type, key, place, elements)`.
    fn storage(&mut self) -> Result<(), Fault> {
        let wrong = || damaged("the pickle refers to something that is no storage");
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

    fn call(&mut self) -> Result<(), Fault> {
        let wrong = || damaged("the pickle describes a tensor that is none");
        let (Value::Tuple(arguments), Value::Function(function)) = (self.pop()?, self.pop()?) else {
            return Err(refused("the pickle calls something that is no function"));
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
                    let sizes = self.tuples.get(tuple).filter(|sizes| sizes.len() <= MOST_AXES)?;
                    sizes.iter().map(size).collect()
                };
                let (shape, strides) = (sizes(*shape).ok_or_else(wrong)?, sizes(*strides).ok_or_else(wrong)?);
                let offset = u64::try_from(*offset).map_err(|_| wrong())?;
                let tensor = Described { storage: storage.clone(), offset, shape, strides };
                self.tensors.push(tensor);
                self.stack.push(Value::Tensor(self.tensors.len() - 1));
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

fn empty() -> Fault {
    damaged("the pickle takes what is not there")
}

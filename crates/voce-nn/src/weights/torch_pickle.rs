//! The small part of Python's pickle that a torch state dict needs; everything else is refused.
//!
//! A pickle is a program. This runs the opcodes that build dicts, tuples and numbers, knows a dozen names by heart,
//! and calls nothing: a name or an opcode outside the list ends the reading. Objects lie in flat tables, so no
//! nesting, however deep, costs stack. Texts stay where they lie in the pickle, however often they are named.

use std::collections::HashMap;

/// Most bytes of a pickle: a state dict takes some hundred bytes a tensor.
pub const MAX_PICKLE: u64 = 32 << 20;
/// Most opcodes of a pickle: a tensor takes about thirty.
pub const MAX_OPCODES: usize = 2 << 20;
/// Most tensors of a pickle.
pub const MAX_TENSORS: usize = 1 << 15;
/// Most bytes of a tensor's name, and of its storage's.
pub const MAX_NAME: usize = 512;

/// Why a pickle was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PickleError {
    /// It names something that is not on the list.
    Code(String),
    /// It is cut short or contradicts itself.
    Broken(&'static str),
}

/// Element types of storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F16,
    Bf16,
    F64,
    /// Integers of this many bytes: not weights, but steps and counters that are stored beside them.
    Integer(usize),
}

impl Element {
    /// Bytes of an element.
    pub(super) fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::F64 => 8,
            Element::Integer(bytes) => bytes,
        }
    }
}

/// A tensor as the pickle describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PickledTensor<'a> {
    /// The name of its storage.
    pub(super) key: &'a str,
    pub(super) element: Element,
    /// Elements in the storage.
    pub(super) stored: usize,
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Bytes,
    Storage(Element),
}

fn name(module: &str, name: &str) -> Result<Name, PickleError> {
    Ok(match (module, name) {
        ("collections", "OrderedDict") => Name::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Name::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Name::RebuildParameter,
        // Extra state of some layers; its bytes are not looked at.
        ("_io", "BytesIO") | ("_codecs", "encode") => Name::Bytes,
        ("torch", "FloatStorage") => Name::Storage(Element::F32),
        ("torch", "HalfStorage") => Name::Storage(Element::F16),
        ("torch", "BFloat16Storage") => Name::Storage(Element::Bf16),
        ("torch", "DoubleStorage") => Name::Storage(Element::F64),
        ("torch", "LongStorage") => Name::Storage(Element::Integer(8)),
        ("torch", "IntStorage") => Name::Storage(Element::Integer(4)),
        ("torch", "ShortStorage") => Name::Storage(Element::Integer(2)),
        ("torch", "CharStorage" | "ByteStorage" | "BoolStorage") => Name::Storage(Element::Integer(1)),
        _ => {
            let shown: String = format!("{module}.{name}").chars().take(120).collect();
            return Err(PickleError::Code(format!("it names '{}'", shown.escape_debug())));
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Mark,
    None,
    Bool,
    Int(i64),
    /// Floats, bytes, objects of no interest.
    Other,
    Text(usize),
    Tuple(usize),
    List,
    Dict(usize),
    Name(Name),
    Storage(usize),
    Tensor(usize),
}

struct StorageRef {
    key: usize,
    element: Element,
    stored: usize,
}

#[derive(Default)]
struct Machine<'a> {
    stack: Vec<Value>,
    memo: HashMap<u32, Value>,
    texts: Vec<&'a str>,
    /// What tuples hold, one after the other, and where each begins and ends.
    cells: Vec<Value>,
    tuples: Vec<(u32, u32)>,
    dicts: Vec<Vec<(Value, Value)>>,
    storages: Vec<StorageRef>,
    tensors: Vec<PickledTensor<'a>>,
}

/// Most axes of a tensor.
const MAX_AXES: usize = 8;
const TOO_MANY: PickleError = PickleError::Broken("it has too many tensors");

/// A name of a tensor or a storage.
fn named(name: &str) -> Result<&str, PickleError> {
    if name.len() > MAX_NAME { Err(PickleError::Broken("a name is too long")) } else { Ok(name) }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], PickleError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(PickleError::Broken("it is cut short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn number(&mut self, bytes: usize) -> Result<u64, PickleError> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    fn line(&mut self) -> Result<&'a str, PickleError> {
        let end = self.0.iter().position(|&b| b == b'\n').ok_or(PickleError::Broken("it is cut short"))?;
        let line = self.take(end + 1)?;
        std::str::from_utf8(&line[..end]).map_err(|_| PickleError::Broken("a name is not text"))
    }
}

/// Reads a state dict: the tensors by name, in their order. Entries that are no tensors are left out.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<(&str, PickledTensor<'_>)>, PickleError> {
    let mut machine = Machine::default();
    let mut reader = Reader(bytes);
    for _ in 0..MAX_OPCODES {
        if machine.step(&mut reader)? {
            return machine.state_dict();
        }
    }
    Err(PickleError::Broken("it has too many opcodes"))
}

impl<'a> Machine<'a> {
    fn pop(&mut self) -> Result<Value, PickleError> {
        match self.stack.pop() {
            None | Some(Value::Mark) => Err(PickleError::Broken("its stack runs empty")),
            Some(value) => Ok(value),
        }
    }

    /// Takes the last mark away, and says where what it marked begins.
    fn unmark(&mut self) -> Result<usize, PickleError> {
        let at = self.stack.iter().rposition(|v| *v == Value::Mark);
        let at = at.ok_or(PickleError::Broken("a mark is missing"))?;
        self.stack.remove(at);
        Ok(at)
    }

    fn text(&mut self, bytes: &'a [u8]) -> Result<(), PickleError> {
        let text = std::str::from_utf8(bytes).map_err(|_| PickleError::Broken("a string is not UTF-8"))?;
        self.texts.push(text);
        self.stack.push(Value::Text(self.texts.len() - 1));
        Ok(())
    }

    /// A tuple of what lies on the stack from `at` on.
    fn tuple(&mut self, at: usize) {
        let start = self.cells.len() as u32;
        self.cells.extend(self.stack.drain(at..));
        self.tuples.push((start, self.cells.len() as u32));
        self.stack.push(Value::Tuple(self.tuples.len() - 1));
    }

    fn tuple_cells(&self, tuple: usize) -> &[Value] {
        let (start, end) = self.tuples[tuple];
        &self.cells[start as usize..end as usize]
    }

    fn tuple_of(&mut self, n: usize) -> Result<(), PickleError> {
        let at = self.stack.len().checked_sub(n).filter(|&at| !self.stack[at..].contains(&Value::Mark));
        self.tuple(at.ok_or(PickleError::Broken("its stack runs empty"))?);
        Ok(())
    }

    fn empty_dict(&mut self) {
        self.dicts.push(Vec::new());
        self.stack.push(Value::Dict(self.dicts.len() - 1));
    }

    fn memoize(&mut self, key: u32) -> Result<(), PickleError> {
        let value = self.pop()?;
        self.stack.push(value);
        self.memo.insert(key, value);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), PickleError> {
        let value = self.memo.get(&key).ok_or(PickleError::Broken("it recalls what it never stored"))?;
        self.stack.push(*value);
        Ok(())
    }

    /// Sets keys and values that lie on the stack from `at` on in the dict below them.
    fn set(&mut self, at: usize) -> Result<(), PickleError> {
        let Some(Value::Dict(dict)) = at.checked_sub(1).map(|below| self.stack[below]) else {
            return Err(PickleError::Broken("items are set on what is no dict"));
        };
        let (pairs, odd) = self.stack[at..].as_chunks::<2>();
        if !odd.is_empty() {
            return Err(PickleError::Broken("a key has no value"));
        }
        self.dicts[dict].extend(pairs.iter().map(|&[key, value]| (key, value)));
        self.stack.truncate(at);
        Ok(())
    }

    /// One opcode; true at the end.
    fn step(&mut self, reader: &mut Reader<'a>) -> Result<bool, PickleError> {
        let opcode = reader.take(1)?[0];
        match opcode {
            0x80 => {
                if reader.number(1)? > 5 {
                    return Err(PickleError::Broken("it has an unknown protocol"));
                }
            }
            0x95 => {
                reader.take(8)?;
            }
            b'.' => return Ok(true),
            b'(' => self.stack.push(Value::Mark),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                let at = self.unmark()?;
                self.stack.truncate(at);
            }
            b'N' => self.stack.push(Value::None),
            0x88 | 0x89 => self.stack.push(Value::Bool),
            b'K' => {
                let n = reader.number(1)?;
                self.stack.push(Value::Int(n as i64));
            }
            b'M' => {
                let n = reader.number(2)?;
                self.stack.push(Value::Int(n as i64));
            }
            b'J' => {
                let n = reader.number(4)?;
                self.stack.push(Value::Int(i64::from(n as u32 as i32)));
            }
            0x8a => {
                let len = reader.number(1)? as usize;
                if len > 8 {
                    return Err(PickleError::Broken("a number is too large"));
                }
                let n = reader.number(len)?;
                // Sign-extends from the bytes that are there.
                let unused = 64 - 8 * len as u32;
                self.stack.push(Value::Int(if len == 0 { 0 } else { (n << unused) as i64 >> unused }));
            }
            b'G' => {
                reader.take(8)?;
                self.stack.push(Value::Other);
            }
            b'X' | 0x8c | 0x8d | b'U' | b'T' => {
                let len = reader.number(match opcode {
                    0x8c | b'U' => 1,
                    0x8d => 8,
                    _ => 4,
                })?;
                let bytes = reader.take(usize::try_from(len).unwrap_or(usize::MAX))?;
                self.text(bytes)?;
            }
            b'B' | b'C' | 0x8e => {
                let len = reader.number(match opcode {
                    b'C' => 1,
                    b'B' => 4,
                    _ => 8,
                })?;
                reader.take(usize::try_from(len).unwrap_or(usize::MAX))?;
                self.stack.push(Value::Other);
            }
            b')' => self.tuple(self.stack.len()),
            b't' => {
                let at = self.unmark()?;
                self.tuple(at);
            }
            0x85..=0x87 => self.tuple_of(usize::from(opcode - 0x84))?,
            b']' => self.stack.push(Value::List),
            b'a' => {
                self.pop()?;
            }
            b'e' => {
                let at = self.unmark()?;
                self.stack.truncate(at);
            }
            b'}' => self.empty_dict(),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.stack.extend([key, value]);
                self.set(self.stack.len() - 2)?;
            }
            b'u' => {
                let at = self.unmark()?;
                self.set(at)?;
            }
            b'q' => {
                let key = reader.number(1)? as u32;
                self.memoize(key)?;
            }
            b'r' => {
                let key = reader.number(4)? as u32;
                self.memoize(key)?;
            }
            0x94 => self.memoize(self.memo.len() as u32)?,
            b'h' => {
                let key = reader.number(1)? as u32;
                self.recall(key)?;
            }
            b'j' => {
                let key = reader.number(4)? as u32;
                self.recall(key)?;
            }
            b'c' => {
                let module = reader.line()?;
                let named = name(module, reader.line()?)?;
                self.stack.push(Value::Name(named));
            }
            0x93 => {
                let (Value::Text(attribute), Value::Text(module)) = (self.pop()?, self.pop()?) else {
                    return Err(PickleError::Broken("a name is not text"));
                };
                let named = name(self.texts[module], self.texts[attribute])?;
                self.stack.push(Value::Name(named));
            }
            0x81 => {
                let (arguments, class) = (self.pop()?, self.pop()?);
                match (class, arguments) {
                    (Value::Name(Name::Bytes), Value::Tuple(_)) => self.stack.push(Value::Other),
                    _ => return Err(PickleError::Code("it makes objects of other kinds".into())),
                }
            }
            b'Q' => self.persistent()?,
            b'R' => self.reduce()?,
            b'b' => {
                // The attributes of a state dict (its version numbers) are of no interest.
                self.pop()?;
                if !matches!(self.stack.last(), Some(Value::Dict(_) | Value::Other)) {
                    return Err(PickleError::Code("it sets the state of an object".into()));
                }
            }
            other => return Err(PickleError::Code(format!("it has the opcode 0x{other:02x}"))),
        }
        Ok(false)
    }

    /// `('storage', type, key, place, elements)`.
    fn persistent(&mut self) -> Result<(), PickleError> {
        let broken = PickleError::Broken("a storage is not described as torch does");
        let Value::Tuple(id) = self.pop()? else { return Err(broken) };
        let &[
            Value::Text(kind),
            Value::Name(Name::Storage(element)),
            Value::Text(key),
            Value::Text(_),
            Value::Int(stored),
        ] = self.tuple_cells(id)
        else {
            return Err(broken);
        };
        let Some(stored) = usize::try_from(stored).ok().filter(|_| self.texts[kind] == "storage") else {
            return Err(broken);
        };
        named(self.texts[key])?;
        self.storages.push(StorageRef { key, element, stored });
        self.stack.push(Value::Storage(self.storages.len() - 1));
        Ok(())
    }

    fn reduce(&mut self) -> Result<(), PickleError> {
        let Value::Tuple(arguments) = self.pop()? else {
            return Err(PickleError::Broken("arguments are no tuple"));
        };
        match self.pop()? {
            // Made from nothing, or from pairs that would have been set: those are not read.
            Value::Name(Name::OrderedDict) if self.tuple_cells(arguments).is_empty() => self.empty_dict(),
            Value::Name(Name::OrderedDict) | Value::Name(Name::Bytes) => self.stack.push(Value::Other),
            Value::Name(Name::RebuildParameter) => match self.tuple_cells(arguments).first() {
                Some(&tensor @ Value::Tensor(_)) => self.stack.push(tensor),
                _ => return Err(PickleError::Broken("a parameter is no tensor")),
            },
            Value::Name(Name::RebuildTensor) => self.tensor(arguments)?,
            _ => return Err(PickleError::Code("it calls what it made itself".into())),
        }
        Ok(())
    }

    fn sizes(&self, value: Value) -> Result<Vec<usize>, PickleError> {
        let Value::Tuple(tuple) = value else { return Err(PickleError::Broken("a shape is no tuple")) };
        let cells = self.tuple_cells(tuple);
        if cells.len() > MAX_AXES {
            return Err(PickleError::Broken("a shape has too many axes"));
        }
        let size = |value: &Value| match value {
            Value::Int(n) => usize::try_from(*n).map_err(|_| PickleError::Broken("a size is negative")),
            _ => Err(PickleError::Broken("a size is no number")),
        };
        cells.iter().map(size).collect()
    }

    /// `(storage, offset, shape, strides, requires_grad, hooks[, metadata])`.
    fn tensor(&mut self, arguments: usize) -> Result<(), PickleError> {
        let (storage, offset, shape, strides) = match *self.tuple_cells(arguments) {
            [Value::Storage(storage), Value::Int(offset), shape, strides, _, _]
            | [Value::Storage(storage), Value::Int(offset), shape, strides, _, _, _] => {
                (storage, offset, shape, strides)
            }
            _ => return Err(PickleError::Broken("a tensor is not described as torch does")),
        };
        let offset = usize::try_from(offset).map_err(|_| PickleError::Broken("an offset is negative"))?;
        let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
        if shape.len() != strides.len() {
            return Err(PickleError::Broken("shape and strides do not fit"));
        }
        let StorageRef { key, element, stored } = self.storages[storage];
        let key = self.texts[key];
        if self.tensors.len() == MAX_TENSORS {
            return Err(TOO_MANY);
        }
        self.tensors.push(PickledTensor { key, element, stored, offset, shape, strides });
        self.stack.push(Value::Tensor(self.tensors.len() - 1));
        Ok(())
    }

    /// The dict on top of the stack, or the one it holds under `state_dict`.
    fn state_dict(mut self) -> Result<Vec<(&'a str, PickledTensor<'a>)>, PickleError> {
        let Value::Dict(top) = self.pop()? else {
            return Err(PickleError::Broken("it holds no state dict"));
        };
        let is_state = |key: &Value| matches!(key, Value::Text(t) if self.texts[*t] == "state_dict");
        let inner = self.dicts[top].iter().find_map(|(key, value)| match value {
            Value::Dict(dict) if is_state(key) => Some(*dict),
            _ => None,
        });
        let entries = &self.dicts[inner.unwrap_or(top)];
        let tensors = entries.iter().filter_map(|(key, value)| match (key, value) {
            (Value::Text(name), Value::Tensor(tensor)) => Some((self.texts[*name], *tensor)),
            _ => None,
        });
        if tensors.clone().count() > MAX_TENSORS {
            return Err(TOO_MANY);
        }
        tensors.map(|(name, tensor)| Ok((named(name)?, self.tensors[tensor].clone()))).collect()
    }
}

//! Decodes a kernel: names become numbers of registers, addresses and instructions, and calls the callee's code.

use std::collections::HashMap;

use super::error::ParseError;
use super::float::Rounding;
use super::lanes::Function;
use super::program::{Address, Instruction, Op, Program, Slot, Special, Test};
use super::syntax::{self, Item, Operand, Registers, Space, Statement, Variable};
use super::types::{Type, truncate};
use super::{access, collective, compare, control, convert, floating, integer, logic, moves};

pub(super) type Result<T> = std::result::Result<T, ParseError>;

/// Shared memory begins here, so that an address of 0 is as wrong as it may be on a card.
pub(super) const SHARED_BASE: u32 = 1024;
/// The most local memory of a thread.
const MOST_LOCAL: u64 = 512 << 10;
/// The most instructions of a kernel with its callees' put in.
const MOST_INSTRUCTIONS: usize = 1 << 20;

/// Decodes an instruction if it is of its group.
type Group = fn(&mut Decoder<'_>, &Statement, &mut Modifiers<'_>) -> Result<Option<Op>>;

/// What a module's kernels can name.
pub(super) struct Symbols<'a> {
    /// Variables in global and constant memory, and their addresses.
    pub addresses: HashMap<&'a str, (Space, u64)>,
    /// Variables in shared memory: each kernel that uses them has its own.
    pub shared: HashMap<&'a str, &'a Variable>,
    pub functions: HashMap<&'a str, &'a syntax::Function>,
}

/// What a name stands for.
#[derive(Clone, Copy)]
enum Meaning {
    Register { slot: Slot, kind: Type },
    Variable { space: Space, address: u64 },
}

/// The names of a `{ … }`.
#[derive(Default)]
struct Scope<'a> {
    registers: HashMap<String, Meaning>,
    ranges: Vec<&'a Registers>,
    variables: HashMap<&'a str, Meaning>,
    labels: HashMap<&'a str, u32>,
    targets: HashMap<&'a str, &'a [String]>,
    /// Whether it is a function's: names of the scopes around it, its callers', are not its own.
    is_function: bool,
}

/// A kernel that is being decoded.
pub(super) struct Decoder<'a> {
    symbols: &'a Symbols<'a>,
    scopes: Vec<Scope<'a>>,
    program: Program,
    /// Where each label stands; branches hold numbers of labels until all are known.
    labels: Vec<Option<u32>>,
    constants: HashMap<u64, Slot>,
    specials: HashMap<Special, Slot>,
    shared: HashMap<&'a str, u64>,
    /// The functions that are being put in, and the label behind each.
    calls: Vec<(&'a str, u32)>,
}

/// Decodes a kernel.
pub(super) fn decode<'a>(function: &'a syntax::Function, symbols: &'a Symbols<'a>) -> Result<Program> {
    let program = Program {
        name: function.name.clone(),
        code: Vec::new(),
        registers: 0,
        predicates: 0,
        names: HashMap::new(),
        predicate_names: HashMap::new(),
        constants: Vec::new(),
        constant_predicates: Vec::new(),
        specials: Vec::new(),
        shared_bytes: 0,
        dynamic_align: 16,
        local_bytes: 0,
        parameter_bytes: 0,
        most_threads: function.most_threads,
        exact_threads: function.exact_threads,
    };
    let mut decoder = Decoder {
        symbols,
        scopes: vec![Scope { is_function: true, ..Scope::default() }],
        program,
        labels: Vec::new(),
        constants: HashMap::new(),
        specials: HashMap::new(),
        shared: HashMap::new(),
        calls: Vec::new(),
    };
    for parameter in &function.parameters {
        let bytes = sized(parameter)? as u32;
        let at = decoder.program.parameter_bytes.next_multiple_of(parameter.align);
        decoder.program.parameter_bytes = at + bytes;
        decoder.name_variable(&parameter.name, Space::Parameter, at.into());
    }
    if let Some(body) = &function.body {
        decoder.items(body)?;
    }
    decoder.finish(function.line)
}

fn sized(variable: &Variable) -> Result<u64> {
    variable.bytes.ok_or_else(|| ParseError {
        line: variable.line,
        token: variable.name.clone(),
        message: "a variable without a size".to_owned(),
    })
}

impl<'a> Decoder<'a> {
    fn finish(mut self, line: u32) -> Result<Program> {
        // The end of the text ends threads too.
        let text = "end of the kernel".to_owned();
        self.program.code.push(Instruction { guard: None, op: Op::Exit, line, text, asm: None });
        for instruction in &mut self.program.code {
            let labels = match &mut instruction.op {
                Op::Branch(target) => std::slice::from_mut(target),
                Op::BranchIndexed { targets, .. } => targets,
                _ => continue,
            };
            for label in labels {
                // Labels are only given out for a place in the text that is decoded.
                *label = self.labels[*label as usize].unwrap_or_default();
            }
        }
        Ok(self.program)
    }

    fn items(&mut self, items: &'a [Item]) -> Result<()> {
        for item in items {
            match item {
                Item::Label { line, name } => {
                    let label = self.new_label();
                    if self.scope().labels.insert(name, label).is_some() {
                        let message = "a label of this name stands above".to_owned();
                        return Err(ParseError { line: *line, token: name.clone(), message });
                    }
                }
                Item::Targets { name, labels } => {
                    self.scope().targets.insert(name, labels);
                }
                _ => {}
            }
        }
        for item in items {
            match item {
                Item::Label { name, .. } => {
                    let at = self.program.code.len() as u32;
                    if let Some(&label) = self.scope().labels.get(name.as_str()) {
                        self.labels[label as usize] = Some(at);
                    }
                }
                Item::Statement(statement) => self.statement(statement)?,
                Item::Registers(registers) => self.declare(registers),
                Item::Variable(variable) => self.variable(variable)?,
                Item::Targets { .. } => {}
                Item::Scope(items) => {
                    self.scopes.push(Scope::default());
                    self.items(items)?;
                    self.scopes.pop();
                }
            }
        }
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    fn declare(&mut self, registers: &'a Registers) {
        if registers.count.is_some() {
            self.scope().ranges.push(registers);
        } else {
            let meaning = self.new_register(registers.kind, &registers.name);
            self.scope().registers.insert(registers.name.clone(), meaning);
        }
    }

    fn variable(&mut self, variable: &'a Variable) -> Result<()> {
        let address = match variable.space {
            Space::Shared => self.place_shared(variable)?,
            // The parameters of a call are local memory that caller and callee both name.
            Space::Local | Space::Parameter => {
                let at = u64::from(self.program.local_bytes).next_multiple_of(variable.align.into());
                let end = at + sized(variable)?;
                if end > MOST_LOCAL {
                    return Err(ParseError {
                        line: variable.line,
                        token: variable.name.clone(),
                        message: format!("more than {MOST_LOCAL} bytes of local memory"),
                    });
                }
                self.program.local_bytes = end as u32;
                at
            }
            Space::Global | Space::Constant | Space::Generic => {
                return Err(ParseError {
                    line: variable.line,
                    token: variable.name.clone(),
                    message: "global variables inside of a function are not known".to_owned(),
                });
            }
        };
        let space = if variable.space == Space::Parameter { Space::Local } else { variable.space };
        self.name_variable(&variable.name, space, address);
        Ok(())
    }

    fn name_variable(&mut self, name: &'a str, space: Space, address: u64) {
        self.scope().variables.insert(name, Meaning::Variable { space, address });
    }

    /// The address of a variable in shared memory; dynamic shared memory's stays open until the static one's size is known.
    fn place_shared(&mut self, variable: &'a Variable) -> Result<u64> {
        let Some(bytes) = variable.bytes else {
            self.program.dynamic_align = self.program.dynamic_align.max(variable.align);
            self.shared.insert(&variable.name, DYNAMIC);
            return Ok(DYNAMIC);
        };
        let at = u64::from(self.program.shared_bytes).next_multiple_of(variable.align.into());
        if at + bytes > 1 << 20 {
            return Err(ParseError {
                line: variable.line,
                token: variable.name.clone(),
                message: "more static shared memory than any card has".to_owned(),
            });
        }
        self.program.shared_bytes = (at + bytes) as u32;
        let address = u64::from(SHARED_BASE) + at;
        self.shared.insert(&variable.name, address);
        Ok(address)
    }

    fn new_register(&mut self, kind: Type, name: &str) -> Meaning {
        let slot = if kind == Type::Pred {
            self.program.predicate_names.insert(self.program.predicates, name.to_owned());
            self.new_predicate_slot()
        } else {
            self.program.names.insert(self.program.registers, name.to_owned());
            self.new_slot()
        };
        Meaning::Register { slot, kind }
    }

    fn new_slot(&mut self) -> Slot {
        self.program.registers += 1;
        self.program.registers - 1
    }

    fn new_predicate_slot(&mut self) -> Slot {
        self.program.predicates += 1;
        self.program.predicates - 1
    }

    fn new_label(&mut self) -> u32 {
        self.labels.push(None);
        self.labels.len() as u32 - 1
    }

    /// What a name stands for, innermost scope first.
    fn meaning(&mut self, name: &str) -> Result<Option<Meaning>> {
        for number in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[number];
            let known = scope.registers.get(name).or_else(|| scope.variables.get(name)).copied();
            if known.is_some() {
                return Ok(known);
            }
            let range = scope.ranges.iter().find(|range| {
                let digits = name.strip_prefix(range.name.as_str()).unwrap_or_default();
                let number = digits.parse().ok().filter(|_| digits == "0" || !digits.starts_with(['0', '+']));
                number.is_some_and(|number: u32| Some(number) < range.count)
            });
            if let Some(kind) = range.map(|range| range.kind) {
                let meaning = self.new_register(kind, name);
                self.scopes[number].registers.insert(name.to_owned(), meaning);
                return Ok(Some(meaning));
            }
            if scope.is_function {
                break;
            }
        }
        if let Some(&(space, address)) = self.symbols.addresses.get(name) {
            return Ok(Some(Meaning::Variable { space, address }));
        }
        if let Some(&address) = self.shared.get(name) {
            return Ok(Some(Meaning::Variable { space: Space::Shared, address }));
        }
        let Some(&variable) = self.symbols.shared.get(name) else { return Ok(None) };
        let address = self.place_shared(variable)?;
        Ok(Some(Meaning::Variable { space: Space::Shared, address }))
    }

    fn statement(&mut self, statement: &'a Statement) -> Result<()> {
        if self.program.code.len() >= MOST_INSTRUCTIONS {
            return refuse(statement, "more instructions than any kernel has");
        }
        if statement.opcode == "call" {
            return self.call(statement);
        }
        let guard = self.guard(statement)?;
        let mut modifiers = Modifiers { left: statement.modifiers.iter().map(String::as_str).collect() };
        let op = self.op(statement, &mut modifiers)?;
        if let Some(modifier) = modifiers.left.first() {
            return refuse(statement, format!("`.{modifier}` is not known here"));
        }
        self.push(statement, guard, op);
        Ok(())
    }

    fn push(&mut self, statement: &Statement, guard: Option<Test>, op: Op) {
        self.program.code.push(Instruction {
            guard,
            op,
            line: statement.line,
            text: statement.text.clone(),
            asm: statement.is_asm.then(|| statement.pattern.clone()),
        });
    }

    fn guard(&mut self, statement: &Statement) -> Result<Option<Test>> {
        let Some((name, negated)) = &statement.guard else { return Ok(None) };
        let test = Operand::Name { name: name.clone(), negated: *negated, offset: 0 };
        self.test_of(statement, &test).map(Some)
    }

    fn op(&mut self, statement: &Statement, modifiers: &mut Modifiers<'_>) -> Result<Op> {
        let groups: [Group; 9] = [
            moves::decode,
            integer::decode,
            floating::decode,
            logic::decode,
            compare::decode,
            convert::decode,
            access::decode,
            collective::decode,
            control::decode,
        ];
        for group in groups {
            if let Some(op) = group(self, statement, modifiers)? {
                return Ok(op);
            }
        }
        refuse(statement, "unknown instruction")
    }

    /// Puts a callee's code in: its parameters are the variables that the call names.
    fn call(&mut self, statement: &'a Statement) -> Result<()> {
        let (results, callee, arguments) = match &statement.operands[..] {
            [Operand::Group(results), Operand::Name { name, .. }, Operand::Group(arguments)] => {
                (&results[..], name, &arguments[..])
            }
            [Operand::Name { name, .. }, Operand::Group(arguments)] => (&[][..], name, &arguments[..]),
            [Operand::Name { name, .. }] => (&[][..], name, &[][..]),
            _ => return refuse(statement, "calls through an address are not known"),
        };
        let Some(&function) = self.symbols.functions.get(callee.as_str()) else {
            return refuse(statement, format!("no function `{callee}`"));
        };
        let Some(body) = &function.body else {
            return refuse(statement, format!("the function `{callee}` has no body"));
        };
        if self.calls.iter().any(|(name, _)| *name == function.name) {
            return refuse(statement, "recursive calls are not known");
        }
        if (results.len(), arguments.len()) != (function.results.len(), function.parameters.len()) {
            return refuse(statement, format!("`{callee}` takes other parameters"));
        }
        let mut variables = HashMap::new();
        for (variable, given) in
            function.results.iter().chain(&function.parameters).zip(results.iter().chain(arguments))
        {
            let meaning = match given {
                Operand::Name { name, negated: false, offset: 0 } => self.meaning(name)?,
                _ => None,
            };
            let Some(meaning @ Meaning::Variable { space: Space::Local, .. }) = meaning else {
                return refuse(statement, "only `.param` variables can be given to a call");
            };
            variables.insert(variable.name.as_str(), meaning);
        }
        let end = self.new_label();
        let guard = self.guard(statement)?;
        if let Some(test) = guard {
            let skip = Test { negated: !test.negated, ..test };
            self.push(statement, Some(skip), Op::Branch(end));
        } else {
            self.push(statement, None, Op::Nothing);
        }
        self.scopes.push(Scope { variables, is_function: true, ..Scope::default() });
        self.calls.push((&function.name, end));
        self.items(body)?;
        self.calls.pop();
        self.scopes.pop();
        self.labels[end as usize] = Some(self.program.code.len() as u32);
        Ok(())
    }

    /// The label behind the function that is being put in; nothing in the kernel itself.
    pub fn return_label(&self) -> Option<u32> {
        self.calls.last().map(|&(_, label)| label)
    }

    /// The number of a label.
    pub fn label(&self, statement: &Statement, name: &str) -> Result<u32> {
        for scope in self.scopes.iter().rev() {
            if let Some(&label) = scope.labels.get(name) {
                return Ok(label);
            }
            if scope.is_function {
                break;
            }
        }
        refuse(statement, format!("no label `{name}`"))
    }

    /// The labels of a `.branchtargets`.
    pub fn branch_targets(&self, statement: &Statement, name: &str) -> Result<Vec<u32>> {
        let lists = self.scopes.iter().rev().find_map(|scope| scope.targets.get(name));
        let Some(names) = lists else { return refuse(statement, format!("no `.branchtargets` `{name}`")) };
        names.iter().map(|name| self.label(statement, name)).collect()
    }

    /// A register that always holds these bits.
    pub fn constant(&mut self, bits: u64) -> Slot {
        if let Some(&slot) = self.constants.get(&bits) {
            return slot;
        }
        let slot = self.new_slot();
        self.program.constants.push((slot, bits));
        self.constants.insert(bits, slot);
        slot
    }

    /// A predicate that always holds, or never.
    pub fn constant_predicate(&mut self, value: bool) -> Slot {
        let known = self.program.constant_predicates.iter().find(|(_, known)| *known == value);
        if let Some(&(slot, _)) = known {
            return slot;
        }
        let slot = self.new_predicate_slot();
        self.program.constant_predicates.push((slot, value));
        slot
    }

    fn special(&mut self, name: &str) -> Option<(Slot, Type)> {
        let (special, kind) = special(name)?;
        Some((self.special_slot(special), kind))
    }

    /// A source: a register or special register of `kind`'s width, an address, or a number.
    pub fn source(&mut self, statement: &Statement, operand: &Operand, kind: Type) -> Result<Slot> {
        self.source_of_width(statement, operand, kind, false)
    }

    /// A source whose register may be wider than `kind`: only its low bits count.
    pub fn source_part(&mut self, statement: &Statement, operand: &Operand, kind: Type) -> Result<Slot> {
        self.source_of_width(statement, operand, kind, true)
    }

    fn source_of_width(
        &mut self,
        statement: &Statement,
        operand: &Operand,
        kind: Type,
        wider: bool,
    ) -> Result<Slot> {
        let fits = |bits: u32| bits == kind.bits() || wider && bits > kind.bits();
        let Operand::Name { name, negated: false, offset } = operand else {
            let bits = immediate(statement, operand, kind)?;
            return Ok(self.constant(bits));
        };
        match self.meaning(name)? {
            Some(Meaning::Register { slot, kind })
                if *offset == 0 && kind != Type::Pred && fits(kind.bits()) =>
            {
                Ok(slot)
            }
            Some(Meaning::Register { .. }) => {
                refuse(statement, format!("`{name}` is no register of {} bits", kind.bits()))
            }
            Some(Meaning::Variable { space, address }) if kind.bits() >= 32 => {
                Ok(self.address_constant(space, address, *offset))
            }
            Some(Meaning::Variable { .. }) => {
                refuse(statement, format!("`{name}` does not fit {} bits", kind.bits()))
            }
            None => match self.special(name) {
                Some((slot, special))
                    if special == Type::Pred || fits(special.bits()) || kind.bits() == 64 =>
                {
                    Ok(slot)
                }
                Some(_) => refuse(statement, format!("`{name}` has another width")),
                None => refuse(statement, format!("`{name}` is not declared")),
            },
        }
    }

    /// A variable's address as a register.
    fn address_constant(&mut self, space: Space, address: u64, offset: i64) -> Slot {
        if space == Space::Shared && address == DYNAMIC {
            return self.special_slot(Special::DynamicBase(offset));
        }
        self.constant(address.wrapping_add_signed(offset))
    }

    fn special_slot(&mut self, special: Special) -> Slot {
        if let Some(&slot) = self.specials.get(&special) {
            return slot;
        }
        let slot = self.new_slot();
        self.program.specials.push((slot, special));
        self.specials.insert(special, slot);
        slot
    }

    /// A destination of `kind`'s width; `_` is one that nothing reads.
    pub fn destination(&mut self, statement: &Statement, operand: &Operand, kind: Type) -> Result<Slot> {
        let (slot, bits) = self.destination_part(statement, operand, kind)?;
        if bits == kind.bits() {
            Ok(slot)
        } else {
            refuse(statement, format!("the destination has no {} bits", kind.bits()))
        }
    }

    /// A destination that may be wider than `kind`, and its width.
    pub fn destination_part(
        &mut self,
        statement: &Statement,
        operand: &Operand,
        kind: Type,
    ) -> Result<(Slot, u32)> {
        let Operand::Name { name, negated: false, offset: 0 } = operand else {
            return refuse(statement, "the destination is no register");
        };
        if name == "_" {
            return Ok((self.new_slot(), kind.bits()));
        }
        match self.meaning(name)? {
            Some(Meaning::Register { slot, kind: has }) if has != Type::Pred && has.bits() >= kind.bits() => {
                Ok((slot, has.bits()))
            }
            _ => refuse(statement, format!("`{name}` is no register of {} bits", kind.bits())),
        }
    }

    /// A predicate that is a destination.
    pub fn predicate(&mut self, statement: &Statement, name: &str) -> Result<Slot> {
        if name == "_" {
            return Ok(self.new_predicate_slot());
        }
        match self.meaning(name)? {
            Some(Meaning::Register { slot, kind: Type::Pred }) => Ok(slot),
            _ => refuse(statement, format!("`{name}` is no predicate")),
        }
    }

    /// A predicate that is a destination, as the operand of this number.
    pub fn predicate_operand(&mut self, statement: &Statement, number: usize) -> Result<Slot> {
        match &statement.operands[number] {
            Operand::Name { name, negated: false, offset: 0 } => self.predicate(statement, name),
            _ => refuse(statement, "the destination is no predicate"),
        }
    }

    /// A predicate that is a source: possibly negated, or a number.
    pub fn test_of(&mut self, statement: &Statement, operand: &Operand) -> Result<Test> {
        match operand {
            Operand::Integer(value) => {
                Ok(Test { predicate: self.constant_predicate(*value != 0), negated: false })
            }
            Operand::Name { name, negated, offset: 0 } if name != "_" => {
                Ok(Test { predicate: self.predicate(statement, name)?, negated: *negated })
            }
            _ => refuse(statement, "expected a predicate"),
        }
    }

    /// Whether an operand is a register and a predicate.
    pub fn is_predicate(&mut self, operand: &Operand) -> Result<bool> {
        let Operand::Name { name, .. } = operand else { return Ok(false) };
        Ok(matches!(self.meaning(name)?, Some(Meaning::Register { kind: Type::Pred, .. })))
    }

    /// An address, `[a]`, in `space`.
    pub fn address(&mut self, statement: &Statement, operand: &Operand, space: Space) -> Result<Address> {
        let Operand::Address { name, offset } = operand else {
            return refuse(statement, "expected an address");
        };
        let Some(name) = name else {
            return Ok(Address { space, base: None, offset: *offset as u64 });
        };
        match self.meaning(name)? {
            Some(Meaning::Register { slot, kind })
                if kind.bits() == 64 || kind.bits() == 32 && space != Space::Generic =>
            {
                Ok(Address { space, base: Some(slot), offset: *offset as u64 })
            }
            Some(Meaning::Variable { space: of, address }) => {
                let space = match (space, of) {
                    (Space::Parameter, Space::Local) => Space::Local,
                    (Space::Generic, Space::Global | Space::Constant) => of,
                    _ if space == of => space,
                    _ => return refuse(statement, format!("`{name}` is in another space")),
                };
                if space == Space::Shared && address == DYNAMIC {
                    let base = Some(self.special_slot(Special::DynamicBase(0)));
                    return Ok(Address { space, base, offset: *offset as u64 });
                }
                Ok(Address { space, base: None, offset: address.wrapping_add_signed(*offset) })
            }
            _ => refuse(statement, format!("`{name}` is no address")),
        }
    }

    /// An instruction that gives a register from registers: the destination first, all of them.
    pub fn compute(
        &mut self,
        statement: &Statement,
        to: Type,
        from: &[Type],
        function: Function,
    ) -> Result<Op> {
        expect_operands(statement, from.len() + 1)?;
        let mut slots = [0; 4];
        for (number, kind) in from.iter().enumerate() {
            slots[number] = self.source(statement, &statement.operands[number + 1], *kind)?;
        }
        let to = self.destination(statement, &statement.operands[0], to)?;
        Ok(Op::Compute { to, from: slots, function })
    }
}

/// Stands for the address of dynamic shared memory while the size of the static one is not known.
const DYNAMIC: u64 = u64::MAX;

/// An error that names an instruction.
pub(super) fn refuse<T>(statement: &Statement, message: impl Into<String>) -> Result<T> {
    Err(ParseError { line: statement.line, token: statement.text.clone(), message: message.into() })
}

/// Refuses an instruction that has another number of operands.
pub(super) fn expect_operands(statement: &Statement, count: usize) -> Result<()> {
    if statement.operands.len() == count {
        Ok(())
    } else {
        refuse(statement, format!("expected {count} operands"))
    }
}

/// A number as the bits of a type.
pub(super) fn immediate(statement: &Statement, operand: &Operand, kind: Type) -> Result<u64> {
    Ok(match (operand, kind) {
        (Operand::Integer(_), Type::F32 | Type::F64 | Type::Tf32) => {
            return refuse(statement, "an integer where a float is due");
        }
        (Operand::Integer(value), _) => truncate(*value as u64, kind.bits()),
        (Operand::Single(bits), Type::F32 | Type::B32 | Type::U32 | Type::S32) => (*bits).into(),
        (Operand::Single(bits), Type::F64) => f64::from(f32::from_bits(*bits)).to_bits(),
        (Operand::Double(value), Type::F64 | Type::B64 | Type::U64 | Type::S64) => value.to_bits(),
        (Operand::Double(value), Type::F32) => (*value as f32).to_bits().into(),
        _ => return refuse(statement, "an operand of another kind is due"),
    })
}

/// The special register of a name, and its type; `Pred` stands for any width.
fn special(name: &str) -> Option<(Special, Type)> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let (base, axis) = match name.split_once('.') {
        Some((base, axis)) => (base, ["x", "y", "z"].iter().position(|known| *known == axis)?),
        None => (name, usize::MAX),
    };
    Some(match (base, axis) {
        ("%tid", 0..3) => (Special::Thread(axis), Type::U32),
        ("%ntid", 0..3) => (Special::BlockSize(axis), Type::U32),
        ("%ctaid", 0..3) => (Special::Block(axis), Type::U32),
        ("%nctaid", 0..3) => (Special::GridSize(axis), Type::U32),
        ("%laneid", usize::MAX) => (Special::Lane, Type::U32),
        ("%warpid", usize::MAX) => (Special::Warp, Type::U32),
        ("%nwarpid", usize::MAX) => (Special::Warps, Type::U32),
        ("%lanemask_eq", usize::MAX) => (Special::LaneMask(Equal, false), Type::U32),
        ("%lanemask_lt", usize::MAX) => (Special::LaneMask(Less, false), Type::U32),
        ("%lanemask_le", usize::MAX) => (Special::LaneMask(Less, true), Type::U32),
        ("%lanemask_gt", usize::MAX) => (Special::LaneMask(Greater, false), Type::U32),
        ("%lanemask_ge", usize::MAX) => (Special::LaneMask(Greater, true), Type::U32),
        ("%dynamic_smem_size", usize::MAX) => (Special::DynamicShared, Type::U32),
        ("%total_smem_size", usize::MAX) => (Special::TotalShared, Type::U32),
        ("%smid", usize::MAX) => (Special::Zero, Type::U32),
        ("%nsmid", usize::MAX) => (Special::One, Type::U32),
        ("%gridid", usize::MAX) => (Special::Zero, Type::U64),
        ("WARP_SZ", usize::MAX) => (Special::WarpSize, Type::Pred),
        _ => return None,
    })
}

/// An opcode's parts behind the first, each to be taken by what knows it.
pub(super) struct Modifiers<'s> {
    left: Vec<&'s str>,
}

impl<'s> Modifiers<'s> {
    /// Takes a part; whether it was there.
    pub fn take(&mut self, name: &str) -> bool {
        let at = self.left.iter().position(|part| *part == name);
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// Takes the first part that a table knows.
    pub fn take_known<T>(&mut self, of: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) =
            self.left.iter().enumerate().find_map(|(at, part)| of(part).map(|value| (at, value)))?;
        self.left.remove(at);
        Some(value)
    }

    /// Takes every part that is one of these, for what makes no difference here.
    pub fn drop_all(&mut self, is: impl Fn(&str) -> bool) {
        self.left.retain(|part| !is(part));
    }

    /// The type that ends the opcode, left where it is.
    pub fn last_type(&self) -> Option<Type> {
        self.left.last().and_then(|part| Type::of(part))
    }

    /// Takes the type that ends the opcode.
    pub fn kind(&mut self, statement: &Statement) -> Result<Type> {
        match self.left.pop().and_then(Type::of) {
            Some(kind) => Ok(kind),
            None => refuse(statement, "expected a type"),
        }
    }

    /// Takes a rounding mode of floating-point numbers.
    pub fn rounding(&mut self) -> Option<Rounding> {
        self.take_known(|part| {
            Some(match part {
                "rn" => Rounding::Nearest,
                "rz" => Rounding::Zero,
                "rm" => Rounding::Down,
                "rp" => Rounding::Up,
                _ => return None,
            })
        })
    }
}

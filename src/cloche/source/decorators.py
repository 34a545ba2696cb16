"""Standard decorators as JavaScript that every engine reads, on the lines where they stand.

    @d class C { @e m() {} @f x = 1 }

becomes, with one small run time per text (`_RUN_TIME`) and one state `s` per class,

    let s=R(),C;s.c(d);C=class { static{C=s.r(this,"C",[…]);} static[s.d(0,e)](){} m() {}
        static[s.d(1,f)](){} x = s.i(1,this,1);#n=s.e(1,this); };C=s.f();

A decorator's expression stays where it is, as the computed name of a member that is deleted
again: so it is evaluated in order, on its line, with the `this` of the class's surroundings. The
static block comes first, and runs when every method is there and no static field is.

Refused, with a place: decorators of parameters, of private methods and accessors, of a default
class without a name. `context.metadata` is undefined. A class decorator that returns another
class does not move the static fields to it.

Source: https://github.com/tc39/proposal-decorators, the README, for kinds, contexts and order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from . import members
from .patch import Patch, RefusalError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

_CLASSES: Final = frozenset({"class", "class_declaration", "abstract_class_declaration"})
_FIELDS: Final = frozenset({"public_field_definition", "field_definition"})
_NAMES: Final = ("name", "property")
_GONE: Final = frozenset({"abstract", "declare"})

# Methods first, then fields; static ones first in both. Of several decorators of one thing the
# last is called first. What a decorator adds for a field runs when the field is there.
_RUN_TIME: Final = (
    "function @R(){const mark=Symbol(),own=[],onClass=[],keys=[],inits=[],extras=[],onThis=[],"
    "onStatic=[],onEnd=[];let made;"
    'const fn=(f)=>{if(typeof f!=="function")throw new TypeError("a decorator and what it gives'
    ' must be a function");return f};'
    "const ask=(d,value,fields,list)=>{let open=true;const result=fn(d)(value,{...fields,"
    'addInitializer(f){if(!open)throw new TypeError("addInitializer was called after its '
    'decorator");list.push(fn(f))},metadata:undefined});open=false;return result};'
    "const apply=(i,[kind,onTheClass,secret,name,access])=>{const key=i in keys?keys[i]:name,"
    "target=onTheClass?made:made.prototype,"
    'field=kind==="field",pair=kind==="accessor";inits[i]=[];extras[i]=[];'
    "const list=field||pair?extras[i]:onTheClass?onStatic:onThis,"
    "slot=field?undefined:Object.getOwnPropertyDescriptor(target,key),"
    'part={method:"value",getter:"get",setter:"set"}[kind];'
    "let value=field?undefined:pair?{get:slot.get,set:slot.set}:slot[part];"
    "const reach=access??{has:(o)=>key in o,get:(o)=>o[key],set:(o,v)=>{o[key]=v}},"
    'open=kind==="setter"?{has:reach.has,set:reach.set}:'
    'kind==="method"||kind==="getter"?{has:reach.has,get:reach.get}:reach;'
    "for(const d of own[i].reverse()){const result=ask(d,value,{kind,name:key,static:onTheClass,"
    "private:secret,access:open},list);if(result===undefined)continue;"
    'if(pair){if(typeof result!=="object"||result===null)throw new TypeError("what the decorator'
    ' of an accessor gives must be an object");'
    "const{get,set,init}=result;value={get:get===undefined?value.get:fn(get),"
    "set:set===undefined?value.set:fn(set)};if(init!==undefined)inits[i].unshift(fn(init))}"
    "else if(field)inits[i].unshift(fn(result));else value=fn(result)}"
    "if(!field)Object.defineProperty(target,key,pair?{...slot,...value}:{...slot,[part]:value})};"
    "return{c(d){onClass.push(d)},d(i,d){(own[i]||=[]).push(d);return mark},"
    'k(i,k){return keys[i]=typeof k==="symbol"?k:`${k}`},'
    "r(C,name,specs){delete C[mark];made=C;"
    'if(name!==null)Object.defineProperty(C,"name",{value:name,configurable:true});'
    "for(const fields of[false,true])for(const still of[true,false])specs.forEach((spec,i)=>{"
    'if((spec[0]==="field")===fields&&spec[1]===still)apply(i,spec)});'
    'for(const d of onClass.reverse()){const result=ask(d,made,{kind:"class",name:made.name},'
    "onEnd);if(result!==undefined)made=fn(result)}"
    "for(const f of onStatic)f.call(made);return made},"
    "i(i,o,v){for(const f of inits[i])v=f.call(o,v);return v},"
    "e(i,o){for(const f of extras[i])f.call(o)},m(o){for(const f of onThis)f.call(o)},"
    "f(){for(const f of onEnd)f.call(made);return made}}}"
)


@dataclass
class _Member:
    node: Node
    decorators: list[Node]


def compile_decorators(patch: Patch, root: Node) -> None:
    """Compile every decorated class below `root`.

    Raises:
        RefusalError: a decorator stands where none is supported.
    """
    if b"@" not in patch.source:
        return
    run_time = ""
    exports: dict[int, Node] = {}  # by the class
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "export_statement":
            inner = node.child_by_field_name("declaration") or node.child_by_field_name("value")
            if inner is not None:
                exports[inner.id] = node
        elif node.type in ("required_parameter", "optional_parameter", "formal_parameters"):
            for child in node.children:
                if child.type == "decorator":
                    raise RefusalError("a parameter cannot be decorated", child)
        elif node.type in _CLASSES:
            export = exports.get(node.id)
            before = export.children if export is not None else []
            decorated = [c for c in (*before, *node.children) if c.type == "decorator"]
            found = list(_decorated_members(node))
            if decorated or found:
                run_time = run_time or patch.fresh_name()
                _Class(patch, node, export, run_time).compile(decorated, found)
        pending.extend(reversed(node.children))
    if run_time:
        first = next(c for c in root.children if c.type not in ("comment", "hash_bang_line"))
        patch.before_all(first, _RUN_TIME.replace("@R", run_time))


def _decorated_members(node: Node) -> Iterator[_Member]:
    body = node.child_by_field_name("body")
    waiting: list[Node] = []
    for child in body.children if body is not None else ():
        if child.type == "decorator":
            waiting.append(child)
        elif child.type != "comment":
            own = [*waiting, *(part for part in child.children if part.type == "decorator")]
            if own:
                yield _Member(child, own)
            waiting = []


class _Class:
    def __init__(self, patch: Patch, node: Node, export: Node | None, run_time: str) -> None:
        self._patch = patch
        self._node = node
        self._export = export
        self._run_time = run_time
        self._state = patch.fresh_name()

    def compile(self, decorators: list[Node], found: list[_Member]) -> None:
        patch, node, state = self._patch, self._node, self._state
        body = node.child_by_field_name("body")
        assert body is not None, "every class has a body"
        specs = [self._compile_member(index, member) for index, member in enumerate(found)]
        name = node.child_by_field_name("name")
        text = patch.text(name) if name is not None else ""
        entries = ",".join(specs)
        if decorators:
            own = text or f"{state}C"
            block = f'static{{{own}={state}.r(this,"{text}",[{entries}]);}}'
        else:
            block = f"static{{{state}.r(this,null,[{entries}]);}}"
        if any('",false,' in spec and not spec.startswith(('["field"', '["acc')) for spec in specs):
            block += f"#{patch.fresh_name()}={state}.m(this);"
        patch.after_brace(body.children[0], block)
        self._enclose(decorators, text)

    def _enclose(self, decorators: list[Node], name: str) -> None:
        """Declare the state around the class and, where the class is decorated, its name."""
        patch, node, state = self._patch, self._node, self._state
        export = self._export
        outer = export.children if export is not None else []
        default = any(child.type == "default" for child in outer)
        declares = node.type != "class" or default
        if default and not name:
            raise RefusalError("a decorated default class needs a name", node)
        opening = f"let {state}={self._run_time}();"
        own = name or f"{state}C"
        if decorators:
            opening = f"let {state}={self._run_time}(),{own};"
        patch.before(export or node, opening if declares else f"(()=>{{{opening}")
        for child in outer:
            if child.type == "default" or (child.type == "export" and (default or decorators)):
                patch.erase_node(child)
        keyword = next(child for child in node.children if child.type == "class")
        for decorator in decorators:
            inner = self._open(decorator, f"{state}.c(")
            patch.after(inner, ");")
        if decorators:
            for child in node.children:
                if child.type == "abstract":
                    patch.erase_node(child)
            patch.before(keyword, f"{own}=")
            named = node.child_by_field_name("name")
            if named is not None:
                patch.erase_node(named)
            patch.after(node, f";{own}={state}.f();" + ("" if declares else f"return {own}}})()"))
        elif not declares:
            patch.before(keyword, "return ")
            patch.after(node, "})()")

    def _open(self, decorator: Node, text: str) -> Node:
        """Put `text` in place of the `@`; return the expression."""
        inner = next(c for c in decorator.named_children if c.type != "comment")
        self._patch.erase_node(decorator.children[0])
        self._patch.before(decorator, text)
        return inner

    def _compile_member(self, index: int, member: _Member) -> str:
        """Compile what is decorated; return its entry in the list of the static block."""
        patch, state, node = self._patch, self._state, member.node
        kinds = {child.type for child in node.children}
        name = next((c for c in map(node.child_by_field_name, _NAMES) if c is not None), None)
        if name is None or node.type not in (*_FIELDS, "method_definition") or kinds & _GONE:
            raise RefusalError("this cannot be decorated", member.decorators[0])
        text = patch.text(name)
        if text == "constructor" and node.type == "method_definition":
            raise RefusalError("a constructor cannot be decorated", member.decorators[0])
        for position, decorator in enumerate(member.decorators):
            start = ";" if position == 0 else ""
            inner = self._open(decorator, f"{start}static[{state}.d({index},")
            patch.after(inner, ")](){}")
        static = "static" in kinds
        is_private = text.startswith("#")
        if node.type == "method_definition":
            kind = "getter" if "get" in kinds else "setter" if "set" in kinds else "method"
        else:
            kind = "accessor" if members.is_accessor(patch, node) else "field"
        if is_private and kind != "field":
            raise RefusalError(
                "a private method or accessor cannot be decorated here", member.decorators[0]
            )
        if kind in ("field", "accessor"):
            self._initialize(index, node, name, static=static)
        access = "undefined"
        if is_private:
            access = f"{{has:(o)=>{text} in o,get:(o)=>o.{text},set:(o,v)=>{{o.{text}=v}}}}"
        key = self._key(index, name, text)
        flags = f"{str(static).lower()},{str(is_private).lower()}"
        return f'["{kind}",{flags},{key},{access}]'

    def _key(self, index: int, name: Node, text: str) -> str:
        if name.type == "computed_property_name":
            inner = name.named_children[0]
            self._patch.before(inner, f"{self._state}.k({index},")
            self._patch.after(inner, ")")
            return "undefined"
        if name.type == "number":
            return f"`${{{text}}}`"
        return text if name.type == "string" else f'"{text}"'

    def _initialize(self, index: int, node: Node, name: Node, *, static: bool) -> None:
        patch, state = self._patch, self._state
        value = node.child_by_field_name("value")
        if value is not None:
            patch.before(value, f"{state}.i({index},this,")
            patch.after(value, ")")
        else:
            patch.after(name, f"={state}.i({index},this)")
        prefix = "static " if static else ""
        patch.after(node, f";{prefix}#{patch.fresh_name()}={state}.e({index},this);")

//! Tests with templates in the style of several families, and with faulty templates.

use super::*;

pub(super) const CHATML: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

pub(super) const LLAMA3: &str = r#"
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

pub(super) const GEMMA: &str = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}";

pub(super) const MISTRAL: &str = r#"{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}"#;

fn special() -> SpecialTokens {
    let texts = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    SpecialTokens { texts: texts.into(), ..SpecialTokens::default() }
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Path::new("t.jinja"))
}

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String> {
    let messages: Vec<Message> = messages.iter().map(|&(role, content)| Message::new(role, content)).collect();
    template(source).render(&messages, true, &special())
}

fn refused(source: &str, messages: &[(&str, &str)]) -> String {
    let error = render(source, messages).expect_err("must be refused");
    assert!(
        matches!(error, Error::Invalid { .. }) && error.remedy().is_some_and(|remedy| !remedy.to_string().is_empty())
    );
    error.to_string()
}

#[test]
fn chatml_adds_a_system_message_and_escapes_nothing() {
    assert_eq!(
        render(CHATML, &[("user", "Hi")]).expect("renders"),
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let custom = render(CHATML, &[("system", "Be <brief> & kind"), ("user", "Hi")]).expect("renders");
    assert!(
        custom.starts_with("<|im_start|>system\nBe <brief> & kind<|im_end|>\n<|im_start|>user"),
        "no HTML escapes: {custom}"
    );
    let without = template(CHATML).render(&[Message::new("user", "Hi")], false, &special()).expect("renders");
    assert!(without.ends_with("Hi<|im_end|>\n"));
}

#[test]
fn llama_3_inserts_the_date() {
    let text = render(LLAMA3, &[("system", " Be brief. "), ("user", " Hi "), ("assistant", "Yes"), ("user", "Why?")])
        .expect("renders");
    let (head, tail) = text.split_once("\n\nBe brief.<|eot_id|>").expect("the system message, trimmed");
    let date = head.strip_prefix("<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: ").expect("a date");
    assert!(date.len() == 11 && date[..2].parse::<u8>().is_ok() && date[7..].parse::<u16>().is_ok(), "{date}");
    assert_eq!(
        tail,
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn gemma_renders_and_refuses_invalid_roles() {
    assert_eq!(
        render(GEMMA, &[("user", " Hi "), ("assistant", "Yes"), ("user", "Why?")]).expect("renders"),
        "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYes<end_of_turn>\n\
         <start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n"
    );
    assert_eq!(
        refused(GEMMA, &[("system", "Be brief"), ("user", "Hi")]),
        "t.jinja: the chat template refuses these messages: System role not supported"
    );
    assert!(refused(GEMMA, &[("user", "Hi"), ("user", "Hi")]).contains("roles must alternate"));
}

#[test]
fn mistral_puts_the_system_message_last() {
    assert_eq!(
        render(MISTRAL, &[("system", "Be brief."), ("user", "Hi"), ("assistant", " Yes "), ("user", "Why?")])
            .expect("renders"),
        "<s>[INST] Hi[/INST] Yes</s>[INST] Be brief.\n\nWhy?[/INST]"
    );
    assert!(refused(MISTRAL, &[("tool", "x")]).ends_with("Only user and assistant roles are supported!"));
}

#[test]
fn python_features_that_templates_use_are_supported() {
    let cases = [
        ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "a<b> 'é'</think>c"}"#),
        (
            "{{ messages | tojson(indent=1) }}",
            "[\n {\n  \"role\": \"user\",\n  \"content\": \"a<b> 'é'</think>c\"\n }\n]",
        ),
        ("{{ messages[0].content.split('</think>')[-1].lstrip('\\n') }}", "c"),
        ("{{ messages[0].content.startswith('a<') and not messages[0].content.endswith('x') }}", "True"),
        ("{% for k, v in messages[0].items() %}{{ k }},{% endfor %}", "role,content,"),
        (
            "{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "13",
        ),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        ("{% if tools is defined and tools %}no{% endif %}{{ tools }}{{ none is none }}", "True"),
        ("{%- generation -%} {{ messages[0].role }} {%- endgeneration %}{{ '{% raw' }}", "user{% raw"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(messages|length) }}{{ messages[::-1]|length }}", "[1]1"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, &[("user", "a<b> 'é'</think>c")]).expect(source), expected, "{source}");
    }
}

#[test]
fn faulty_templates_give_errors() {
    let error = refused("a\n{% if %}", &[("user", "x")]);
    assert!(error.starts_with("t.jinja: the chat template does not parse: line 2: syntax error"), "{error}");
    assert!(
        refused("{{ messages[0].content.nothing() }}", &[("user", "x")]).contains("the chat template fails: line 1")
    );
    assert!(refused("{{ nothing.at.all }}", &[("user", "x")]).contains("the chat template fails"));
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
    assert!(refused(endless, &[("user", "x")]).ends_with("the chat template exceeds the step limit"));
    assert!(
        refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", &[("user", "x")])
            .contains("the chat template fails")
    );
    assert!(matches!(template(CHATML).render(&[], true, &special()), Err(Error::Usage { .. })));
}

#[test]
fn the_template_is_read_from_one_of_three_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
    let shown = || {
        ChatTemplate::from_dir(dir.path()).map(|template| {
            template.map(|template| template.render(&[Message::new("user", "x")], true, &special()).expect("renders"))
        })
    };
    assert_eq!(shown().expect("nothing wrong"), None);
    put("tokenizer_config.json", r#"{"bos_token":"<s>"}"#);
    assert_eq!(shown().expect("no template"), None);
    put("tokenizer_config.json", r#"{"chat_template":"plain"}"#);
    assert_eq!(shown().expect("one").as_deref(), Some("plain"));
    let named = r#"[{"name":"tool_use","template":"tools"},{"name":"default","template":"usual"}]"#;
    put("tokenizer_config.json", &format!(r#"{{"chat_template":{named}}}"#));
    assert_eq!(shown().expect("named").as_deref(), Some("usual"));
    let named = r#"[{"name":"tool_use","template":"tools"},{"name":"rag","template":"docs"}]"#;
    put("tokenizer_config.json", &format!(r#"{{"chat_template":{named}}}"#));
    assert!(shown().expect_err("no default").to_string().ends_with("`default`; there are: tool_use, rag"));
    put("chat_template.json", r#"{"chat_template":"json"}"#);
    assert_eq!(shown().expect("json").as_deref(), Some("json"));
    put("chat_template.jinja", "jinja");
    assert_eq!(shown().expect("jinja").as_deref(), Some("jinja"));
    std::fs::remove_file(dir.path().join("chat_template.jinja")).expect("removed");
    put("chat_template.json", r#"{"chat_template":3}"#);
    assert!(shown().expect_err("a number").to_string().contains("`chat_template` cannot be read"));
}

/// Templates of a few bytes that would take gigabytes, hours or the stack.
const BOMBS: [&str; 31] = [
    // Security report, F2: namespaces that contain themselves, deep lists.
    "{% set n = namespace() %}{% set n.a = n %}{{ n }}",
    "{% set n = namespace() %}{% set n.a = [n] %}{{ n|tojson }}",
    "{% set n = namespace() %}{% set m = namespace(a=n) %}{% set n.a = m %}{{ n == m }}",
    "{% set ns = namespace(s=[]) %}{% for i in range(100000) %}{% set ns.s=[ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=[]) %}{% for i in range(100000) %}{% set ns.s={'a': ns.s} %}{% endfor %}{{ ns.s|tojson }}",
    "{% set ns = namespace(s=1) %}{% for i in range(100000) %}{% set ns.s=(ns.s,) %}{% endfor %}{{ ns.s == ns.s }}",
    "{% set ns = namespace(s=1) %}{% for i in range(100000) %}{% set ns.s=dict(a=ns.s) %}{% endfor %}{{ ns.s|length }}",
    // F4: values without bound.
    "{{ \"a\\nb\"|indent(10000000000) }}",
    "{{ \"a\\nb\"|indent(width=10000000000) }}",
    "{{ \"%10000000000d\"|format(1) }}",
    "{{ \"%.10000000000f\"|format(1) }}",
    "{{ \"%*d\"|format(10000000000, 1) }}",
    "{{ \"{:>10000000000}\".format(1) }}",
    "{% set a=\"a\"*100000 %}{{ a|replace(\"a\",a)|length }}",
    "{% set a=\"a\"*100000 %}{{ a.replace(\"a\",a)|length }}",
    "{% set a=\"a\"*1000000 %}{{ range(10000)|join(a)|length }}",
    "{% set a=\"a\"*1000000 %}{{ a.join(range(10000))|length }}",
    "{% set a=\"a\"*1000000 %}{{ [range(10000)]|map(\"join\", a)|list|length }}",
    "{{ messages|slice(10000000000)|list|length }}",
    "{{ messages|batch(10000000000,\"x\")|list|length }}",
    "{% set ns=namespace(s=\"aaaaaaaaaaaaaaaa\") %}{% for i in range(40) %}{% set ns.s=ns.s~ns.s %}{% endfor %}",
    "{% set ns=namespace(s=\"aaaaaaaaaaaaaaaa\") %}{% for i in range(40) %}{% set ns.s=ns.s+ns.s %}{% endfor %}",
    "{{ \"a b \"*5000000 }}",
    "{{ (\"a\"*100000000~\"a\"*100000000)|length }}",
    "{{ ([1]*100000000)|list|length }}",
    // Lists that contain the same list twice: exponential when they are printed or compared.
    "{% set ns=namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s=[ns.s,ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns=namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s=ns.s+ns.s %}{% endfor %}{{ ns.s|length }}",
    // Text that is captured instead of printed.
    "{% set x %}aaaaaaaaaaaaaaaa{% endset %}{% for i in range(99) %}{% set y %}{% for j in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}{% endfor %}",
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns=namespace(s=\"aaaa\") %}{% for i in range(40) %}{% set ns.s=m(ns.s) %}{% endfor %}",
    // Long strings that are read again and again.
    "{% set a=\"a\"*4000000 %}{% for i in range(99999) %}{% if a == a ~ \"\" %}{% endif %}{% endfor %}",
    "{% set a=\"a\"*4000000 %}{% for i in range(99999) %}{{ a[-1] }}{% endfor %}",
];

#[test]
fn f4_templates_that_would_take_the_machine_are_refused() {
    for source in BOMBS {
        let start = std::time::Instant::now();
        let error = refused(source, &[("user", "x")]);
        assert!(error.contains("the chat template"), "{source}: {error}");
        assert!(start.elapsed().as_secs() < 20, "{source}: {:?}", start.elapsed());
    }
}

/// Found by the fuzz target `template`: each `tojson` escapes the quotes and backslashes of the one
/// before, which doubles the text. Its bytes count against the limit of one value and that of all.
#[test]
fn a_filter_that_doubles_its_text_each_time_is_refused_at_once() {
    let all =
        "{% set ns=namespace(s=messages) %}{% for i in range(2000) %}{% set ns.s=ns.s|tojson %}{% endfor %}".to_owned();
    let reset = "{% for j in range(2000) %}{% set ns=namespace(s='\"') %}{% for i in range(20) %}\
                 {% set ns.s=ns.s|tojson %}{% endfor %}{% endfor %}";
    let chain = |start: &str, count: usize| format!("{{{{ {start}{} }}}}", "|tojson".repeat(count));
    let once = format!("{{% set x = messages{} %}}", "|tojson".repeat(480));
    for source in [all, reset.to_owned(), chain("messages", 480), chain("'\\\\'", 480), chain("messages", 2000), once] {
        let start = std::time::Instant::now();
        let error = refused(&source, &[("user", "\"x\"")]);
        assert!(error.contains("exceeds a limit") || error.contains("more than 1000 tokens"), "{source:.60}: {error}");
        assert!(start.elapsed().as_secs() < 20, "{source:.60}: {:?}", start.elapsed());
    }
}

#[test]
fn f2_operator_chains_that_would_overflow_the_stack_are_refused() {
    let chain = |start: &str, link: &str, end: &str| format!("{{{{ {start}{}{end} }}}}", link.repeat(20_000));
    let chains = [
        chain("1", "+1", ""),
        chain("", "-", "1"),
        chain("", "not ", "1"),
        chain("1", "|string", ""),
        chain("a", ".a", ""),
        chain("1", "~1", ""),
        chain("1", " if 1 else 1", ""),
        chain("1", " is odd", ""),
        chain("a", "[0]", ""),
        chain("a", "()", ""),
        format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(10_000)),
        format!("{}{}", "{% if 1 %}".repeat(10_000), "{% endif %}".repeat(10_000)),
    ];
    for source in &chains {
        let error = refused(source, &[("user", "x")]);
        assert!(error.contains("does not parse"), "{}: {error}", &source[..20]);
    }
    let long = "x".repeat(1 << 20);
    assert!(refused(&long, &[("user", "x")]).contains("the chat template has 1048576 bytes; the limit is 262144"));
    // The longest chain that is permitted compiles on the thread's stack.
    assert_eq!(render(&format!("{{{{ 1{} }}}}", "+1".repeat(490)), &[("user", "x")]).expect("renders"), "491");
    assert_eq!(render(&format!("{{{{ a{} }}}}", "~a".repeat(490)), &[("user", "x")]).expect("renders"), "");
}

#[test]
fn limits_do_not_change_what_templates_render() {
    let cases = [
        (
            "{{ 3 * 4 }} {{ 1.5 * 2 }} {{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1] * 2 }} {{ 2 ** 3 * 2 }} {{ 'a' * -1 }}",
            "12 3.0 ababab xx [1, 1] 16 ",
        ),
        ("{% for x in [1, 2] if x * 2 > 2 %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}", "12"),
        (
            "{% set ns = namespace({'a': 1}, b=2) %}{% set ns.c = ns.a + ns.b %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.d is defined }}",
            "123False",
        ),
        (
            "{% macro m(a, b=2) %}{{ a }}-{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(3, 4) %}!{% endcall %}",
            "1-23-4!",
        ),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x ~ x }}{% filter upper %}{{ x }}b{% endfilter %}", "a1a1A1B"),
        (
            "{% for r in [[1, [2]], [3]] recursive %}{% if r is iterable %}({{ loop(r) }}){% else %}{{ r }}{% endif %}{% endfor %}",
            "(1(2))(3)",
        ),
        (
            "{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}{{ 'x' in {'x': 1} }}{{ 1 < 2 < 3 }}",
            "x1TrueTrue",
        ),
        (
            "{{ 'a-b'|replace('-', '+') }}{{ [1, 2]|join(', ') }}{{ '%05.1f|%s'|format(2.5, 'x') }}{{ '{:>4}'.format('r') }}",
            "a+b1, 2002.5|x   r",
        ),
        (
            "{{ 'x\\ny'|indent(2) }}|{{ [1, 2, 3]|batch(2)|list }}|{{ [1, 2, 3]|slice(2)|list }}",
            "x\n  y|[[1, 2], [3]]|[[1, 2], [3]]",
        ),
        (
            "{% with a = 1 %}{% block b %}{{ a }}{% endblock %}{% endwith %}{{ messages[0]['role'][0] }}{{ 'abc'[::-1] }}",
            "1ucba",
        ),
        ("{% set a, b = 1, [2, 3] %}{{ a }}{{ b[-1] }}{{ (a, b)|length }}{{ b|map('string')|list }}", "132['2', '3']"),
        (
            "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages[0] is mapping }}{{ none }}",
            "1TrueNone",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, &[("user", "x")]).expect(source), expected, "{source}");
    }
    // Long messages raise the limits.
    let long = "x".repeat(6 << 20);
    assert_eq!(render("{{ messages[0].content ~ '!' }}", &[("user", &long)]).expect("renders").len(), long.len() + 1);
}

#[test]
fn f24_exceptions_of_templates_are_escaped_and_cut() {
    let error = refused("{{ raise_exception('\u{1b}[31m' ~ 'a' * 5000) }}", &[("user", "x")]);
    assert!(error.contains("refuses these messages: \\u{1b}[31maaa") && error.len() < 1200, "{error}");
}

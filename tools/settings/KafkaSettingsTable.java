// Prints Apache Kafka's broker and topic setting definitions as JSON: names, types, defaults, importance, accepted
// values, update modes and topic synonyms; no documentation texts. Needs a JDK 17 and Kafka's jars on the class path:
//   java -cp 'KAFKA_LIBS/*' tools/settings/KafkaSettingsTable.java > tests/unit/settings/kafka_settings.json
import java.util.*;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.server.config.*;
import org.apache.kafka.storage.internals.log.LogConfig;

public class KafkaSettingsTable {
    static String quoted(String s) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < ' ' || c > '~') out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }

    static String row(ConfigDef.ConfigKey key, String mode) {
        String value = null;
        if (key.hasDefault() && key.defaultValue != null)
            value = ConfigDef.convertToString(
                key.defaultValue instanceof Password p ? p.value() : key.defaultValue,
                key.defaultValue instanceof Password ? ConfigDef.Type.STRING : key.type);
        StringBuilder out = new StringBuilder("{");
        out.append("\"type\": ").append(quoted(key.type.name()));
        out.append(", \"importance\": ").append(quoted(key.importance.name()));
        if (value != null) out.append(", \"default\": ").append(quoted(value));
        if (!key.hasDefault()) out.append(", \"required\": true");
        if (key.internalConfig) out.append(", \"internal\": true");
        if (key.validator != null && !key.validator.toString().isEmpty())
            out.append(", \"accepts\": ").append(quoted(key.validator.toString()));
        if (mode != null && !mode.equals("read-only")) out.append(", \"update_mode\": ").append(quoted(mode));
        return out.append("}").toString();
    }

    static void section(String name, Map<String, String> rows, boolean last) {
        System.out.println("  " + quoted(name) + ": {");
        Iterator<Map.Entry<String, String>> it = new TreeMap<>(rows).entrySet().iterator();
        while (it.hasNext()) {
            var e = it.next();
            System.out.println("    " + quoted(e.getKey()) + ": " + e.getValue() + (it.hasNext() ? "," : ""));
        }
        System.out.println("  }" + (last ? "" : ","));
    }

    public static void main(String[] args) {
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        Map<String, String> broker = new HashMap<>(), topic = new HashMap<>(), synonyms = new HashMap<>();
        AbstractKafkaConfig.CONFIG_DEF.configKeys().forEach((n, k) -> broker.put(n, row(k, modes.getOrDefault(n, "read-only"))));
        LogConfig.configDefCopy().configKeys().forEach((n, k) -> topic.put(n, row(k, null)));
        ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.forEach((n, list) -> {
            StringJoiner names = new StringJoiner(", ", "[", "]");
            for (ConfigSynonym s : list) names.add(quoted(s.name()));
            synonyms.put(n, names.toString());
        });
        System.out.println("{");
        section("broker", broker, false);
        section("topic", topic, false);
        section("synonyms", synonyms, true);
        System.out.println("}");
    }
}
